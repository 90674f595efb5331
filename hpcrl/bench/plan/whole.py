"""A short run with every role in one process: what is left of it beside its parts is what the roles cost each other."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from hpcrl.bench.plan.clocks import most_resident_bytes
from hpcrl.comm.ranks import plan_ranks
from hpcrl.comm.signals import SignalFlag
from hpcrl.config import RunConfig
from hpcrl.data.trajectory import TrajectoryLayout
from hpcrl.envs import make_env_spec
from hpcrl.launch.board import Board
from hpcrl.launch.inside import run_rank
from hpcrl.launch.memory import replay_bytes
from hpcrl.launch.rank import make_specs
from hpcrl.launch.situation import Situation
from hpcrl.storage import read_table

_FEWEST_UPDATES = 4
_QUIET = (
    "checkpoint.every_updates=null",
    "checkpoint.every_seconds=null",
    "evaluation.episodes=0",
    "log.level=warning",
)
"""The run writes its last checkpoint, and nothing else that a run's usual updates do not."""
_HOPS = ("stream.send", "publisher.publish")


class Stamps(Board):
    """Looks at the clocks after each update, and ends the run after some seconds, as a signal would."""

    def __init__(self, flag: SignalFlag, seconds: float) -> None:
        super().__init__()
        self._flag, self._seconds = flag, seconds
        self._began = time.perf_counter()
        self.updates: list[tuple[float, float]] = []
        """perf_counter, CPU seconds of this process."""
        self.start_s = self.told_s = 0.0
        self.light_bytes = 0
        """RAM of a rank without a network or environments."""

    def enter(self, phase: str, *, together: bool = False) -> None:
        """As Board.enter."""
        super().enter(phase, together=together)
        if not self.light_bytes and "world" in phase:
            self.light_bytes = most_resident_bytes(os.getpid())

    def report(self, progress: str) -> None:
        """As Board.report."""
        super().report(progress)
        if not progress.startswith("update "):
            return
        now = time.perf_counter()
        self.updates.append((now, time.process_time()))
        if len(self.updates) == 1:
            self.start_s = now - self._began
        late = now - self.updates[0][0] >= self._seconds
        if late and len(self.updates) >= _FEWEST_UPDATES and self._flag.received is None:
            self._flag.received, self.told_s = signal.SIGUSR1.name, now


def measure_whole(config: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Run `config`, which is for one rank, for about `seconds` after its first update; then it saves and stops.

    Of one update, the first ones left out: `cpu_s`, `wall_s`; of all: `valid_fraction`, `hops` (seconds on the wall's
    clock). `updates`, `env_steps` of the run; `start_s` to the first update, `stop_s` from the order to stop
    to the end of the run; `checkpoint_bytes` by part, `resident` bytes of a rank by role, `parameters_bytes`,
    `replay_bytes` of all replay memories, and `trajectory_bytes` of one environment.
    """
    flag = SignalFlag()
    stamps = Stamps(flag, seconds)
    given = RunConfig.parse(config)
    runs_dir = Path(given.storage.runs_dir)
    with tempfile.TemporaryDirectory(
        prefix="hpcrl-plan-", dir=runs_dir if runs_dir.is_dir() else None
    ) as folder:
        run_dir = Path(folder) / "run"
        run = given.with_overrides([*_QUIET, f"storage.run_dir={run_dir}"])
        kernel_bytes, network_bytes, env_bytes = _loaded(run)
        code = run_rank(run, Situation("none", 0, 1, 1), stamps, flag)
        ended = time.perf_counter()
        if len(stamps.updates) < _FEWEST_UPDATES:
            raise RuntimeError(
                f"a run on one rank ended with exit code {code} after {len(stamps.updates)} updates; "
                f"give it a budget.env_steps for at least {_FEWEST_UPDATES}"
            )
        updates = read_table(run_dir, "updates")
        hops = {row["hop"].decode(): float(row["seconds"]) for row in read_table(run_dir, "timers")}
        saved = sorted((run_dir / "checkpoints").glob("*/manifest.json"))
        sizes = _sizes(saved[-1].parent) if saved else {}
    first = len(stamps.updates) // 4
    between = len(stamps.updates) - 1 - first
    (since, cpu_before), (until, cpu_after) = stamps.updates[first], stamps.updates[-1]
    resident = most_resident_bytes(os.getpid())
    _, spec, num_parameters = make_specs(run, "cpu")
    return {
        "updates": len(stamps.updates),
        "cpu_s": (cpu_after - cpu_before) / between,
        "wall_s": (until - since) / between,
        "env_steps": int(updates["env_steps"][-1]),
        "valid_fraction": float(updates["valid_fraction"].mean()),
        "hops": {name: hops[name] / len(stamps.updates) for name in _HOPS if name in hops},
        "start_s": stamps.start_s,
        "stop_s": ended - (stamps.told_s or until),
        "checkpoint_bytes": sizes,
        "resident": {
            "replay": stamps.light_bytes - network_bytes - env_bytes,
            "learner": resident - kernel_bytes - env_bytes,
            "actor": resident - kernel_bytes,
            "worker": resident,
        },
        "parameters_bytes": 4 * num_parameters,
        "replay_bytes": replay_bytes(run, plan_ranks(run, ["here"]), ["here"], "here", spec),
        "trajectory_bytes": TrajectoryLayout(spec).nbytes / given.env.num_envs,
    }


def _loaded(run: RunConfig) -> tuple[int, int, int]:
    """Load what replay memories, networks and environments of a run need; the RAM that each took."""
    sizes = [most_resident_bytes(os.getpid())]
    if run.algorithm.uses_replay:
        import_module("hpcrl.data.replay_kernels")
    sizes.append(most_resident_bytes(os.getpid()))
    import_module("hpcrl.algorithms")
    sizes.append(most_resident_bytes(os.getpid()))
    make_env_spec(run.env)
    sizes.append(most_resident_bytes(os.getpid()))
    return sizes[1] - sizes[0], sizes[2] - sizes[1], sizes[3] - sizes[2]


def _sizes(checkpoint: Path) -> dict[str, int]:
    """Bytes of each part: learner-0, actor-0, ..., what lies beside its file counted."""
    found: dict[str, int] = {}
    for path in checkpoint.rglob("*"):
        if path.is_file():
            part = path.relative_to(checkpoint).parts[0].partition(".")[0]
            found[part] = found.get(part, 0) + path.stat().st_size
    return found
