"""The checks of the suite that the mutants are held against."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.unit.algorithms.test_algorithms import (
    check_ratio_is_against_the_policy_that_acted,
    check_reward_clip,
    check_steps_that_are_not_valid_do_not_matter,
    check_time_limit_chain,
)
from tests.unit.algorithms.test_gradients import check_gradient_against_reference
from tests.unit.algorithms.test_learners import check_not_finite_on_one_learner, check_rank_invariance
from tests.unit.functional import test_returns as returns_checks
from tests.unit.functional.test_losses import per_sample_losses
from tests.unit.functional.test_oracles import (
    check_oracle_dualclip,
    check_oracle_gae,
    check_oracle_vtrace,
    load,
)


def all_cases(check: Callable[[dict[str, Any]], None], name: str) -> None:
    for case in load(name)["cases"]:
        check(case)


CHECKS: dict[str, Callable[[], None]] = {
    "gae oracles": partial(all_cases, check_oracle_gae, "gae"),
    "vtrace oracles": partial(all_cases, check_oracle_vtrace, "vtrace"),
    "dual clip oracles": partial(all_cases, check_oracle_dualclip, "dualclip"),
    "gae reference": partial(returns_checks.check_gae_against_reference, 1, (8, 3), 0.95),
    "vtrace reference": partial(
        returns_checks.check_vtrace_against_reference, 1, (8, 3), 0.95, (2.0, 1.0, 1.5)
    ),
    "border": partial(returns_checks.check_values_after_a_border_do_not_matter, "truncated"),
    "chain": returns_checks.check_time_limit_chain,
    "impala chain": partial(check_time_limit_chain, "impala"),
    "ppo chain": partial(check_time_limit_chain, "ppo"),
    "impala ranks": partial(check_rank_invariance, "impala", (1, 0, 6)),
    "ppo ranks": partial(check_rank_invariance, "ppo", (1, 0, 6)),
    "impala not finite": partial(check_not_finite_on_one_learner, "impala", "reward", float("nan")),
    "ppo not finite": partial(check_not_finite_on_one_learner, "ppo", "behavior_log_prob", float("nan")),
    "impala valid": partial(check_steps_that_are_not_valid_do_not_matter, "impala"),
    "ppo valid": partial(check_steps_that_are_not_valid_do_not_matter, "ppo"),
    "impala ratio": partial(check_ratio_is_against_the_policy_that_acted, "impala"),
    "ppo ratio": partial(check_ratio_is_against_the_policy_that_acted, "ppo"),
    "reward clip": partial(check_reward_clip, "impala"),
    "samples": per_sample_losses,
    "impala gradient": partial(check_gradient_against_reference, "impala"),
    "ppo gradient": partial(check_gradient_against_reference, "ppo"),
}
