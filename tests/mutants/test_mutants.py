"""Each fault of this list, put into the code, must turn a check of the suite red.

The checks themselves are the unit tests' own functions. On the sound code each passes, here it must fail.
A mutant whose line has changed fails loudly and is to be rewritten, not deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from hpcrl.algorithms import actor_critic, gradient, impala, metrics, ppo
from hpcrl.functional import distributions, losses, returns, statistics
from tests.mutants.checks import CHECKS
from tests.mutants.mutate import mutate


@dataclass(frozen=True)
class Mutant:
    fault: str
    target: Any
    old: str
    new: str
    checks: tuple[str, ...]


REDUCE = gradient.reduce_gradient
BOTH_RANKS = ("impala ranks", "ppo ranks")
MUTANTS = [
    Mutant(
        "no reduction",
        REDUCE,
        "vector = reducer.finish((samples, extra, *seen))",
        "vector = reducer.open_gradient(reducer.buckets[0].stop).copy(); reducer.finish((samples, extra, *seen))",
        BOTH_RANKS,
    ),
    Mutant("local count", REDUCE, "max(total, 1.0)", "max(float(samples), 1.0)", BOTH_RANKS),
    Mutant(
        "clip by the local norm",
        REDUCE,
        "math.sqrt(reducer.square_sum())",
        "float(np.linalg.norm(reducer.open_gradient(reducer.buckets[0].stop)))",
        BOTH_RANKS,
    ),
    Mutant("local mean", statistics.global_moments, "sum_(first)", "pass", ("ppo ranks",)),
    Mutant("local variance", statistics.global_moments, "sum_(second)", "pass", ("ppo ranks",)),
    Mutant("local metrics", metrics.Metrics.reduce, "reducer.sum_(vector)", "pass", BOTH_RANKS),
    Mutant(
        "local minibatches", ppo.PPO._minibatches, "column -= batch.column_offset", "pass", ("ppo ranks",)
    ),
    Mutant(
        "gae without bootstrap",
        returns.gae,
        "* next_value - value",
        "* 0 * next_value - value",
        ("gae oracles", "gae reference", "ppo chain"),
    ),
    Mutant(
        "vtrace without bootstrap",
        returns.vtrace,
        "reward + bootstrap * next_value - value",
        "reward - value",
        ("vtrace oracles", "vtrace reference", "impala chain"),
    ),
    Mutant(
        "truncation is termination in gae",
        returns.gae,
        "discount(terminated, gamma, value.dtype)",
        "discount(terminated | truncated, gamma, value.dtype)",
        ("gae oracles", "gae reference", "chain", "ppo chain"),
    ),
    Mutant(
        "truncation is termination in vtrace",
        returns.vtrace,
        "discount(terminated, gamma, value.dtype)",
        "discount(terminated | truncated, gamma, value.dtype)",
        ("vtrace oracles", "vtrace reference", "chain", "impala chain"),
    ),
    Mutant(
        "gae leaks over truncation",
        returns.gae,
        "discount(terminated | truncated, gamma * lambda_",
        "discount(terminated, gamma * lambda_",
        ("gae oracles", "gae reference", "border"),
    ),
    Mutant(
        "vtrace leaks over truncation",
        returns.vtrace,
        "discount(ended, gamma * lambda_",
        "discount(terminated, gamma * lambda_",
        ("vtrace oracles", "vtrace reference", "border"),
    ),
    Mutant(
        "first step left out",
        returns._accumulate_backward,
        "len(rows) - 2, -1, -1",
        "len(rows) - 2, 0, -1",
        ("gae oracles", "gae reference", "vtrace reference"),
    ),
    Mutant(
        "last step left out",
        returns._accumulate_backward,
        "len(rows) - 2, -1, -1",
        "len(rows) - 3, -1, -1",
        ("gae oracles", "gae reference", "vtrace reference"),
    ),
    Mutant(
        "trace of the next step",
        returns._accumulate_backward,
        "coefficients[t]",
        "coefficients[t + 1]",
        ("gae oracles", "gae reference", "vtrace reference", "border"),
    ),
    Mutant(
        "ends of the step before",
        returns.vtrace,
        "torch.where(ended[:-1]",
        "torch.where(ended[1:]",
        ("vtrace oracles", "vtrace reference"),
    ),
    Mutant("values of the same step", impala.Impala.loss, "values[1:]", "values[:-1]", ("impala gradient",)),
    Mutant(
        "caps mixed up",
        returns.vtrace,
        "_capped_exp(log_rho, c_bar)",
        "_capped_exp(log_rho, rho_bar)",
        ("vtrace oracles", "vtrace reference"),
    ),
    Mutant(
        "dual clip for both signs",
        losses.clipped_surrogate_loss,
        "-dual_clip * advantage.abs()",
        "dual_clip * advantage",
        ("dual clip oracles",),
    ),
    Mutant(
        "no dual clip",
        losses.clipped_surrogate_loss,
        "torch.maximum(objective, -dual_clip * advantage.abs())",
        "objective",
        ("dual clip oracles",),
    ),
    Mutant(
        "log-probability of one dimension",
        distributions.gaussian,
        "standardized.square().sum(-1)",
        "standardized.square()[:, :1]",
        ("samples",),
    ),
    Mutant(
        "entropy over the batch",
        distributions.categorical,
        "log_probs.clamp(min=LEAST_LOG_PROB)).sum(-1)",
        "log_probs.clamp(min=LEAST_LOG_PROB)).sum(0)[action]",
        ("samples",),
    ),
    Mutant(
        "impala trains on reset steps",
        impala.Impala.loss,
        "mask = rows(valid).to(torch.float32)",
        "mask = torch.ones(count)",
        ("impala chain", "impala gradient"),
    ),
    Mutant(
        "ppo trains on reset steps",
        ppo.PPO._samples,
        "mask=valid.to(torch.float32)",
        "mask=torch.ones(len(valid))",
        ("ppo gradient",),
    ),
    Mutant(
        "moments with reset steps",
        ppo.PPO._samples,
        'fields["valid"], reducer',
        'torch.ones_like(fields["valid"]), reducer',
        ("ppo gradient",),
    ),
    Mutant(
        "rewards of reset steps",
        actor_critic.ActorCriticAlgorithm.training_reward,
        '.masked_fill(~fields["valid"], 0.0)',
        "",
        ("impala valid", "ppo valid"),
    ),
    Mutant(
        "ppo values of the same step",
        actor_critic.ActorCriticAlgorithm.advantages,
        "values[1:]",
        "values[:-1]",
        ("ppo gradient",),
    ),
    Mutant(
        "observations one step late",
        ppo.PPO._samples,
        'rows(fields["obs"][:-1])',
        'rows(fields["obs"][1:])',
        ("ppo gradient",),
    ),
    Mutant(
        "bonus for certainty",
        ppo.PPO._loss,
        "- config.entropy_coefficient",
        "+ config.entropy_coefficient",
        ("ppo gradient",),
    ),
    Mutant(
        "policy gradient uphill in loss",
        losses.policy_gradient_loss,
        "-log_prob * advantage.detach()",
        "log_prob * advantage.detach()",
        ("impala gradient",),
    ),
    Mutant(
        "impala ratio against itself",
        impala.Impala.loss,
        'fields["behavior_log_prob"]',
        "log_prob.detach().view(shape)",
        ("impala ratio",),
    ),
    Mutant(
        "ppo ratio against itself",
        ppo.PPO._loss,
        "numbers.behavior_log_prob",
        "log_prob.detach()",
        ("ppo ratio",),
    ),
    Mutant(
        "what is not finite is applied",
        gradient.ReducedGradient.finite.fget,
        "return math.isfinite(self.norm) and math.isfinite(self.extra)",
        "return True",
        ("impala not finite", "ppo not finite"),
    ),
    Mutant(
        "rewards are not clipped",
        actor_critic.ActorCriticAlgorithm.training_reward,
        "reward.clamp(-clip, clip)",
        "reward",
        ("reward clip",),
    ),
]
PAIRS = [
    pytest.param(mutant, check, id=f"{mutant.fault}: {check}")
    for mutant in MUTANTS
    for check in mutant.checks
]


@pytest.mark.parametrize("check", CHECKS)
def test_the_check_passes_on_the_sound_code(check: str) -> None:
    CHECKS[check]()


@pytest.mark.parametrize(("mutant", "check"), PAIRS)
def test_the_check_sees_the_mutant(monkeypatch: pytest.MonkeyPatch, mutant: Mutant, check: str) -> None:
    mutate(monkeypatch, mutant.target, mutant.old, mutant.new)
    with pytest.raises(AssertionError):
        CHECKS[check]()


def test_every_check_is_used_and_a_lost_line_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {check for mutant in MUTANTS for check in mutant.checks} == set(CHECKS)
    with pytest.raises(ValueError, match="0 times"):
        mutate(monkeypatch, returns.gae, "this line is gone", "")
