"""Every quantity a run logs, declared once: name, type, unit, how it is merged over ranks, meaning."""

from __future__ import annotations

from collections.abc import Callable

from hpcrl.storage.columns import Column, Rows, Table
from hpcrl.storage.more_tables import HASHES, METRICS
from hpcrl.storage.profile_tables import EDGES, ROLE, ROLE_RANK, TIME, TIMERS
from hpcrl.storage.replay_table import REPLAY

__all__ = ["SCHEMA_VERSION", "TABLES", "UPGRADES", "Column", "Rows", "Table"]

SCHEMA_VERSION = 1
"""Files of every version up to this one can be read, newer ones are refused. So that this stays true:

* A new column or table keeps the version: of files without it rows have the column's `missing` value (a bool must
  declare one), and no rows. A column may get a wider type.
* A column that changes its unit or meaning, or goes away, raises the version by one, with a step in UPGRADES.
"""

UPGRADES: dict[int, Callable[[str, Rows], Rows]] = {}
"""Version -> what makes rows of a table (name, rows as stored) of that version rows of the next one."""

_UPDATE = Column("update", "i8", "update", "same", "number of the update, 1 for the first")
_ENV_STEPS = Column(
    "env_steps",
    "i8",
    "env_step",
    "sum",
    "valid env_steps trained on so far (with a replay memory: inserted there), over all environments and attempts",
)
_EPISODE_RETURN = Column(
    "episode_return", "f8", "reward", "each", "undiscounted sum of the environment's own rewards, unclipped"
)
_EPISODE_LENGTH = Column("episode_length", "i8", "env_step", "each", "env_steps of the episode")

UPDATES = Table(
    "updates",
    (
        _UPDATE,
        _ENV_STEPS,
        TIME,
        Column(
            "policy_loss", "f8", "1", "mean", "policy loss, over all epochs and minibatches of the update"
        ),
        Column("value_loss", "f8", "1", "mean", "value loss before its coefficient"),
        Column("entropy", "f8", "nat", "mean", "entropy of the policy"),
        Column("approx_kl", "f8", "nat", "mean", "estimate of KL(behavior policy, learned policy)"),
        Column("clip_fraction", "f8", "1", "mean", "share of env_steps whose ratio PPO clipped"),
        Column(
            "rho_clip_fraction", "f8", "1", "mean", "share of env_steps whose importance weight hit its cap"
        ),
        Column(
            "log_rho_mean", "f8", "nat", "mean", "mean log importance weight, learned against behavior policy"
        ),
        *(
            Column(
                f"log_rho_{name}",
                "f8",
                "nat",
                "mean",
                f"{which} of the absolute log importance weights, from a histogram over all learners whose bins are "
                "14 % wide, from 0.0001 to 30: the upper end of its bin",
            )
            for name, which in (
                ("p50", "median"),
                ("p90", "90 % quantile"),
                ("p99", "99 % quantile"),
                ("max", "largest"),
            )
        ),
        Column(
            "q_value", "f8", "1", "mean", "value of the actions trained on, as the learned network has it"
        ),
        Column("q_target", "f8", "1", "mean", "what these values were trained towards"),
        Column("td_error", "f8", "1", "mean", "absolute difference of q_target and q_value"),
        Column("temperature", "f8", "reward/nat", "same", "weight of the entropy, after the update (SAC)"),
        Column("explained_variance", "f8", "1", "mean", "1 - Var(target - value) / Var(target)"),
        Column("grad_norm", "f8", "1", "same", "L2 norm of the averaged gradient before it was clipped"),
        Column(
            "grad_square",
            "f8",
            "1",
            "same",
            "estimate of the squared norm of the true gradient, from batches of two sizes: what one learner or "
            "one pass of it saw, and the whole; NaN where there is only the whole",
        ),
        Column(
            "grad_variance",
            "f8",
            "1",
            "same",
            "estimate of the trace of the covariance of one env_step's gradient; NaN as grad_square",
        ),
        Column(
            "noise_scale",
            "f8",
            "env_step",
            "same",
            "grad_variance / grad_square, the simple gradient noise scale: batches far below it gain by growing. NaN "
            "where grad_square is not positive; of one update it scatters: divide means over many",
        ),
        Column("learning_rate", "f8", "1", "same", "step size used"),
        Column("loss_scale", "f8", "1", "same", "factor of the loss after the update, for float16; else NaN"),
        Column("lag_min", "i8", "update", "min", "smallest lag of a trained env_step"),
        Column("lag_mean", "f8", "update", "mean", "mean lag of the trained env_steps"),
        Column("lag_max", "i8", "update", "max", "largest lag of a trained env_step"),
        Column("valid_fraction", "f8", "1", "mean", "share of the batch that was valid (not a reset step)"),
        Column(
            "batch_use",
            "i8",
            "1",
            "same",
            "how often the batch has been trained on, this update included; env_steps counts the first time",
            missing=1,
        ),
        Column("applied", "?", "1", "same", "false when a gradient was not finite and nothing was changed"),
        Column("parameter_version", "i8", "update", "same", "version of the parameters after this update"),
        Column(
            "rows_checksum",
            "i8",
            "1",
            "sum",
            "over the update's rows in `trajectories`, of the CRC-32 of each",
        ),
    ),
    "One row per update.",
)
TRAJECTORIES = Table(
    "trajectories",
    (
        _UPDATE,
        Column("collected_in", "i4", "1", "each", "attempt in which it was collected"),
        Column("actor", "i4", "1", "each", "role_rank of the rank that collected it, in that attempt"),
        Column("grant", "i8", "1", "each", "number of the grant it answered, among those of its replay rank"),
        Column("parameter_version", "i8", "update", "each", "version that chose the actions"),
        Column("env_steps", "i8", "env_step", "each", "valid env_steps of that version that were trained on"),
    ),
    "What each update was trained on, as the learner found it in its batch: a row per trajectory, or more where a "
    "trajectory has several versions. `hpcrl audit` checks everything else against these rows.",
)
LAG = Table(
    "lag",
    (
        _UPDATE,
        Column("lag", "i8", "update", "each", "learner version minus behavior version"),
        Column(
            "env_steps",
            "i8",
            "env_step",
            "sum",
            "valid env_steps with this lag in this update (not cumulative)",
        ),
    ),
    "Histogram of the lag of each update: a row for every lag that occurred.",
)
EPISODES = Table(
    "episodes",
    (
        Column(
            "env_steps",
            "i8",
            "env_step",
            "each",
            "env_steps of the run, as in `updates`, when the episode was logged",
        ),
        TIME,
        Column("env_index", "i8", "1", "each", "environment of the run, counted over all ranks"),
        _EPISODE_RETURN,
        _EPISODE_LENGTH,
        Column("truncated", "?", "1", "each", "true when a time limit ended it, false when it terminated"),
        Column("parameter_version", "i8", "update", "each", "version that chose the last action"),
        Column("actor", "i4", "1", "each", "role_rank of the rank that stepped it"),
    ),
    "One row per finished training episode.",
)
EVALUATION = Table(
    "evaluation",
    (
        _UPDATE,
        _ENV_STEPS,
        Column("seed", "i8", "1", "each", "seed of the evaluation environments"),
        Column("episode", "i4", "1", "each", "number of the episode within the evaluation"),
        _EPISODE_RETURN,
        _EPISODE_LENGTH,
        Column("cut", "?", "1", "each", "true when evaluation.max_episode_steps cut it"),
    ),
    "One row per evaluation episode of a frozen policy.",
)
LEARNERS = Table(
    "learners",
    (
        ROLE_RANK,
        _UPDATE,
        Column(
            "weights_sha256", "S64", "text", "each", "SHA-256 of the parameter vector's bytes, hexadecimal"
        ),
    ),
    "Fingerprint of each learner's weights: equal over learners at one update, or they have diverged.",
)
RANKS = Table(
    "ranks",
    (
        Column("world_rank", "i4", "1", "each", "rank in the MPI world"),
        ROLE,
        ROLE_RANK,
        Column("node", "S64", "text", "each", "host name"),
        Column("local_rank", "i4", "1", "each", "index of the rank on its node"),
        Column("device", "S16", "text", "each", "cpu or cuda:N"),
        Column("cores", "S64", "text", "each", "cores the rank may run on, as ranges"),
        Column("threads", "i4", "1", "each", "compute threads of the rank"),
        Column("pid", "i8", "1", "each", "process number on its node"),
    ),
    "Where each rank of the attempt ran.",
)
EVENTS = Table(
    "events",
    (
        TIME,
        Column("kind", "S24", "text", "each", "started, finished, stopped, failed, dropped_trajectory, ..."),
        ROLE,
        ROLE_RANK,
        Column("world_rank", "i4", "1", "each", "rank in the MPI world"),
        Column("count", "i8", "1", "sum", "how many this row stands for", missing=1),
        Column("text", "S256", "text", "each", "details"),
    ),
    "Faults, drops, starts and ends.",
)
TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        UPDATES,
        LAG,
        TRAJECTORIES,
        REPLAY,
        EPISODES,
        TIMERS,
        EDGES,
        EVALUATION,
        LEARNERS,
        RANKS,
        EVENTS,
        METRICS,
        HASHES,
    )
}
"""Every table of a result file, by name."""
