"""The sections of a run that are not the algorithm: environment, ranks, lag, budget, results, communication."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from hpcrl.config.base import Config
from hpcrl.config.hops import entered_hops
from hpcrl.config.protections import Protection


class EnvConfig(Config):
    """Which environment, from which engine, and how many copies."""

    id: str
    """Engine's name of the environment, or package.module:make for engine `custom` (see `hpcrl check --help`)."""
    engine: Literal["gymnasium", "envpool", "toy", "custom"] = "gymnasium"
    """Who steps the environments."""
    num_envs: int = Field(8, ge=1)
    """Environments in the whole run, divided as evenly as possible over the ranks that act."""
    num_groups: int = Field(1, ge=1)
    """Groups per acting rank that are stepped in turn, so that one group steps while the policy serves another.
    Above 1 pays where the engine has threads or processes of its own."""
    vectorization: Literal["sync", "async"] = "sync"
    """gymnasium: step in the rank's process, or in one (spawned) process per environment."""
    num_threads: int = Field(1, ge=1)
    """EnvPool threads per group."""
    mask_from_info: bool = False
    """gymnasium, and custom ones that make a gymnasium.Env: the mask of allowed actions is info["action_mask"].
    Elsewhere it is the entry `action_mask` of a Dict observation, which needs no key."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the engine's constructor."""

    @model_validator(mode="after")
    def _masks(self) -> EnvConfig:
        if self.mask_from_info and self.engine not in ("gymnasium", "custom"):
            raise ValueError(
                f"env.mask_from_info=true is not there with env.engine={self.engine}; use env.mask_from_info=false"
            )
        return self


class RanksConfig(Config):
    """How the MPI world is divided (pipeline) or how many ranks act and learn (synchronous)."""

    actors: int = Field(1, ge=1)
    """Ranks that step environments (pipeline)."""
    replay: int = Field(1, ge=1)
    """Ranks that hold the queue between actors and learners, or the replay memory (pipeline)."""
    learners: int = Field(1, ge=1)
    """Ranks that compute gradients (pipeline)."""
    workers: int = Field(1, ge=1)
    """Ranks that act and learn (synchronous)."""
    nodes: int | None = Field(None, ge=1)
    """Nodes that the ranks must be on, checked at start; null: all nodes that the scheduler gave the job."""
    learner_device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where learners (synchronous: workers) keep parameters and compute updates. cuda: each on a GPU of its node, in
    turn; auto: cuda where every learner has one, else cpu. Actors stay on the CPU."""


class LagConfig(Config):
    """The lag contract: how many updates old the data of an update may be."""

    max_lag: int = Field(1, ge=0)
    """Largest learner version minus behavior version of any trained env_step, in updates. 0: the actors wait
    for each update; 1: they work while the learner does; more: looser. Not for what a replay memory gives."""
    overdue: Literal["wait", "drop"] = "wait"
    """When an update would make a trajectory under way too old: wait for it, or drop it when it comes (counted)."""
    publish_every_updates: int = Field(1, ge=1)
    """Publish parameters after every so many updates; needs max_lag >= publish_every_updates - 1."""
    publish_every_seconds: float | None = Field(None, gt=0)
    """Publish also after an update that ends so long after the last publication; null: by number only."""
    injection: int = Field(0, ge=0)
    """Only for studies, in a synchronous run of one worker: train every batch so many updates after the one it was
    collected for. A queue of that many batches is filled by the initial policy before the first update, so the lag of
    update n (from 0) is min(n, injection); needs max_lag >= injection."""


class BudgetConfig(Config):
    """When the run is finished."""

    env_steps: int = Field(1_000_000, ge=1)
    """Valid env_steps trained on (with a replay memory: inserted there), over all environments; the run ends at the
    first update that reaches it."""


class EvaluationConfig(Config):
    """The evaluation of the frozen policy: at the end, and while the run goes on."""

    episodes: int = Field(20, ge=0)
    """Episodes, one per environment; 0: none."""
    every_env_steps: int | None = Field(None, ge=1)
    """Evaluate also at the first update that reaches each multiple of so many env_steps; null: only at the end.
    Learner 0 does it between two updates, and all learners wait meanwhile (hop `evaluation`)."""
    seed: int = Field(12345, ge=0, lt=2**63)
    """Seed of the evaluation environments; never depends on the training seed or the ranks."""
    greedy: bool = True
    """Take the most likely action (the mean, for Gaussian policies) rather than a sample."""
    max_episode_steps: int = Field(108_000, ge=1)
    """Episodes longer than this are cut and reported as cut."""


class ModelStoreConfig(Config):
    """Which models stay in RUN/models (`hpcrl models`, `hpcrl play`)."""

    keep: int = Field(3, ge=0)
    """A model is stored at each evaluation and at the end. The newest so many stay; beside them the one of the highest
    mean evaluation return, tagged ones, and the one that was rolled back to. 0: none is stored."""


class StorageConfig(Config):
    """Where results go."""

    runs_dir: str = "runs"
    """Folder in which a run directory NAME-SEED-NUMBER is made when run_dir is not given."""
    run_dir: str | None = None
    """The run directory itself. Refused when it already holds a run, unless that is resumed (`hpcrl run --resume`)."""
    flush_interval_s: float = Field(1.0, gt=0)
    """Results reach the file at least this often: what a SIGKILL can lose."""
    patience_s: float = Field(300.0, ge=0)
    """While the disk refuses the result file or checkpoints (full, over quota, an error of the device) training goes on
    for so long: rows wait in memory, and another checkpoint is tried soon. Then the run ends with exit code 3, and
    what was written before is whole."""
    buffer_bytes: int = Field(1 << 28, ge=1 << 20)
    """Rows that may wait so; more end the run at once."""


class CheckpointConfig(Config):
    """When the state of the whole run is saved while it goes on; at its end it always is."""

    every_updates: int | None = Field(None, ge=1)
    """Save about this many updates after the last checkpoint; null: do not count updates."""
    every_seconds: float | None = Field(600.0, gt=0)
    """Save about this long after the last checkpoint; null: do not look at the clock."""
    keep: int = Field(2, ge=1)
    """Checkpoints that stay."""
    keep_best: int = Field(1, ge=0)
    """Beside these, checkpoints that stay for their training return: the mean of the last 100 episodes of the attempt
    when they were written, once 20 have ended. The link checkpoints/best leads to the best."""
    margin_s: float = Field(60.0, ge=0)
    """Inside a Slurm job: stop (exit code 75) this long, plus the longest save so far, before the allocation ends."""


class CommConfig(Config):
    """Streams and waiting."""

    slots: int = Field(2, ge=2)
    """Trajectory send buffers per actor; a full set makes the actor wait."""
    chunk_bytes: int = Field(1 << 30, ge=1024)
    """Messages above this many bytes travel in parts."""
    transport: Literal["auto", "messages"] = "auto"
    """auto: ranks of one node exchange through shared memory where there is enough of it; messages: MPI everywhere."""
    wait: Literal["polite", "spin"] = "polite"
    """polite: waiting ranks sleep between polls and leave their core to others; spin: lowest latency."""
    drain_timeout_s: float = Field(600.0, gt=0)
    """After the stop: a rank that waits so long for what was under way reports its streams and ends the job. Must be
    longer than the longest env_step."""
    checksum: bool = False
    """Trajectories carry a CRC that the receiver compares."""
    debug: bool = False
    """Poison released buffers, and compare a fingerprint of each collective over the learners before it runs."""


class ReductionConfig(Config):
    """How learners (or synchronous workers) sum their gradients."""

    form: Literal["auto", "shared", "messages", "torch"] = "auto"
    """Inside a node. shared: sums in shared memory; messages: MPI collectives; auto: shared where there is enough.
    torch: gradients by torch.distributed, also across nodes (gloo); on GPUs that is always so (nccl)."""
    timeout_s: float = Field(600.0, gt=0)
    """By torch.distributed: a sum of gradients that takes longer ends the job."""
    exchange: Literal["auto", "all_gather", "two_phase"] = "auto"
    """Across nodes. all_gather: every shard to every node; two_phase: pieces to their owners, then the sums to all;
    auto: whichever moves fewer bytes for this number of nodes and this compression."""
    compression: Literal["none", "bf16", "int8", "topk"] = "none"
    """What crosses nodes. int8 and topk keep what they leave out and add it to the next gradient (error feedback)."""
    topk_fraction: float = Field(0.01, gt=0, le=0.5)
    """topk: share of the entries, largest first, that crosses nodes."""
    warmup_updates: int = Field(20, ge=0)
    """Updates that are exchanged uncompressed at the start."""
    bucket_bytes: int = Field(4 << 20, ge=4096)
    """Gradients are summed in pieces of about this size, the ones that are ready first while others are computed."""
    shard_optimizer: bool = False
    """Each learner of a node steps the optimizer for its own share of the parameters, which the node then shares."""


class FaultsConfig(Config):
    """What becomes of ranks that die or do not get on."""

    actor_death: Literal["end", "continue"] = "end"
    """end: any dead rank ends the job (exit code 3). continue: the run goes on without an actor that is killed, as long
    as each replay rank has another one; the event is noted as `actor_died`. Needs ULFM: Open MPI 5 or newer with
    `mpiexec --with-ft ulfm`, which `hpcrl run` says by itself; MPICH and srun do not have it."""

    stall_timeout_s: float | None = Field(600.0, ge=1)
    """A rank that is stuck in one call for so long, or stopped, is named with the place it is at and ends the job
    (exit code 3). Must be longer than the longest env_step (all environments of a group), update, evaluation step
    (all episodes) and save of a checkpoint. After twice that time in which every rank of the run only waits, the job
    ends too. The start has a limit of its own. null: wait for ever, as for a debugger."""
    start_timeout_s: float | None = Field(600.0, ge=1)
    """A rank whose start (MPI, environments, networks, a checkpoint that is read) takes longer is named with what it is
    at and ends the job (exit code 3). null: wait for ever."""
    without: tuple[Protection, ...] = ()
    """Protections that are switched off: only for `hpcrl drill --without`, never for a run that counts."""

    def has(self, protection: Protection) -> bool:
        """Whether a protection is on."""
        return protection not in self.without


class LogConfig(Config):
    """What is printed while the run goes on."""

    progress_interval_s: float = Field(2.0, gt=0)
    """Seconds between progress lines."""
    level: Literal["debug", "info", "warning"] = "info"
    """Level of the root rank's log; other ranks log warnings."""


class ProfileConfig(Config):
    """Where the time goes, and what would be if a hop were slow."""

    delay_s: dict[str, float] = Field(default_factory=dict)
    """Hop -> seconds: every entry of that hop, on any rank, takes so much longer. To see what a slow hop looks like:
    {"replay.sample": 0.01}. The hops are those of table `timers` (analysis/README.md)."""

    trace: bool = False
    """Write a trace: when each rank was in which hop, for Chrome or Perfetto (`hpcrl trace RUN OUT.json`)."""
    trace_s: float = Field(60.0, gt=0)
    """Seconds of the run, from the end of its start, that the trace covers."""
    trace_bytes: int = Field(64 << 20, ge=4096)
    """Size of one rank's trace, at most; it ends there."""

    @field_validator("delay_s")
    @classmethod
    def _known(cls, value: dict[str, float]) -> dict[str, float]:
        for hop, seconds in value.items():
            if hop not in entered_hops():
                raise ValueError(
                    f"{hop!r} is no hop that can be delayed; those are {', '.join(entered_hops())}"
                )
            if seconds < 0:
                raise ValueError(f"{hop}: {seconds:g} s is less than 0; use 0 or more")
        return value
