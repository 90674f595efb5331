"""What is drilled, and how its runs are started and resumed: exactly as `hpcrl run` does it."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcrl.config import ExitCode, OffPolicyConfig, RunConfig
from hpcrl.drill.runs import DrilledRun, NotHeldError
from hpcrl.storage import checkpoint

FOREVER = "budget.env_steps=1000000000000"
DRILLED = (
    FOREVER,
    "evaluation.episodes=0",
    "checkpoint.every_updates=2",
    "checkpoint.every_seconds=null",
    "checkpoint.keep=3",
    "storage.flush_interval_s=0.05",
)
"""Settings of every drilled run: no end by itself, something to go on from, results that are seen at once."""


@dataclass(frozen=True, slots=True)
class Drill:
    """What is drilled, and where."""

    config: RunConfig
    """The user's, with the protections that are to be off."""
    num_ranks: int | None
    folder: Path
    """Of one exercise."""
    stall_timeout_s: float
    bound_s: float
    """Within which a failure must have ended the job."""

    @property
    def run_dir(self) -> Path:
        """Of the exercise's run."""
        return self.folder / "run"

    @property
    def stall(self) -> str:
        """The setting under which stalls are seen soon."""
        return f"faults.stall_timeout_s={self.stall_timeout_s:g}"

    @property
    def update_env_steps(self) -> int:
        """Of one update, if all are valid; with a replay memory those before a first one, too."""
        config = self.config
        if isinstance(config.algorithm, OffPolicyConfig):
            replay = config.replay
            return replay.min_size + math.ceil(config.algorithm.batch_size / replay.samples_per_insert)
        per_trajectory = config.algorithm.unroll_length * config.env.num_envs // config.num_acting_ranks
        return max(1, per_trajectory * config.batch_trajectories)

    @contextlib.contextmanager
    def start(self, *settings: str, config: RunConfig | None = None) -> Iterator[DrilledRun]:
        """Begin the exercise's run; nothing of it outlives the block. `config`: another one than the user's."""
        changed = (config or self.config).with_overrides(
            [*DRILLED, f"storage.run_dir={self.run_dir}", *settings]
        )
        path = self.folder / "job.json"
        path.write_text(changed.to_json())
        with self._start(str(path), "--resume", "never") as run:
            yield run

    @contextlib.contextmanager
    def resume(self, *settings: str) -> Iterator[DrilledRun]:
        """Go on with the exercise's run, or try to."""
        changes = [word for setting in settings for word in ("--set", setting)]
        with self._start(str(self.run_dir), *changes, "--resume", "must") as run:
            yield run

    def finish(self) -> str:
        """Go on from the newest checkpoint to a budget two updates on. Raises NotHeldError when that fails."""
        try:
            saved = checkpoint.newest(self.run_dir)
        except (FileNotFoundError, ValueError) as error:
            raise NotHeldError(f"no checkpoint can be loaded: {error}") from error
        return self.finish_from(saved.update, int(saved.meta["env_steps"]))

    def finish_from(self, update: int, env_steps: int) -> str:
        """As `finish`, from a checkpoint that is known."""
        with self.resume(f"budget.env_steps={env_steps + 2 * self.update_env_steps}") as run:
            ended = run.wait("it was resumed")
        if ended.code != ExitCode.FINISHED:
            raise NotHeldError(f"resumed, it ended with exit code {ended.code}: {ended.last_words}")
        if f"resumed at update {update} from" not in ended.stdout:
            raise NotHeldError(f"it was not resumed at update {update}")
        return f"resumed at update {update} and finished"

    @contextlib.contextmanager
    def _start(self, *arguments: str) -> Iterator[DrilledRun]:
        command = [sys.executable, "-P", "-m", "hpcrl", "run", *arguments]
        if self.num_ranks is not None:
            command += ["--ranks", str(self.num_ranks)]
        output = self.folder / f"start-{len(list(self.folder.glob('start-*.out'))) + 1}"
        run = DrilledRun(command, self.run_dir, output)
        try:
            yield run
        finally:
            run.close()
