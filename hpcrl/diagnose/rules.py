"""All rules, in one table: what each looks at, and from where on something is wrong."""

from __future__ import annotations

from hpcrl.diagnose import data_rules as data
from hpcrl.diagnose import learning_rules as learning
from hpcrl.diagnose import memory_rules as memory
from hpcrl.diagnose.finding import Rule

RULES: tuple[Rule, ...] = (
    Rule("ended", "wrong", "status.json", "killed or failed", data.ended),
    Rule("damaged", "wrong", "attempts/", "none", data.damaged),
    Rule("stalled", "wrong", "updates, episodes", f"{data.STALL_S:g} s", data.stalled),
    Rule("weights", "wrong", "learners", "all equal", data.weights),
    Rule("lag_bound", "wrong", "lag", "lag.max_lag", data.lag_bound),
    Rule("nonfinite", "wrong", "updates.applied", "none", learning.nonfinite),
    Rule("priorities", "wrong", "replay.refused_priorities", "none", memory.priorities),
    Rule(
        "reset_steps", "wrong", "updates.valid_fraction, episodes", f"{data.LEAST_RESETS:g}", data.reset_steps
    ),
    Rule("crashes", "harmful", "events", "none", data.crashes),
    Rule("odd_actor", "harmful", "episodes", "8 standard errors", data.odd_actor),
    Rule("dropped", "harmful", "events, trajectories", f"{data.LARGEST_DROPPED:g}", data.dropped),
    Rule("uneven", "harmful", "trajectories", f"{data.LEAST_OF_FAIR:g}", data.uneven),
    Rule(
        "off_policy", "harmful", "updates.log_rho_p90", f"{learning.LARGEST_LOG_RHO:.2f}", learning.off_policy
    ),
    Rule(
        "clipping",
        "harmful",
        "updates.clip_fraction",
        f"{learning.LARGEST_CLIP_FRACTION:g}",
        learning.clipping,
    ),
    Rule("entropy", "harmful", "updates.entropy", f"{learning.COLLAPSED:g}", learning.entropy),
    Rule("value", "harmful", "updates.explained_variance", f"{learning.LEAST_EXPLAINED:g}", learning.value),
    Rule("software", "harmful", "provenance of the attempts", "equal", data.software),
    Rule("disk", "costly", "events", "none", data.disk),
    Rule("limiter", "costly", "replay", f"{memory.LARGEST_WAIT:g}", memory.limiter),
)
"""Worst first, and so are their findings."""
