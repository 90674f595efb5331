"""How much memory a replay memory would take, and how much there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrl.comm.ranks import RankPlan
from hpcrl.config import ConfigError, RunConfig

if TYPE_CHECKING:
    from hpcrl.data.specs import TrajectorySpec

_CGROUP = {"": "memory.max", "memory": "memory.limit_in_bytes"}
"""File of the limit by the controllers of a line of /proc/self/cgroup: version 2 names none."""


def memory_limit(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that the processes of this job may have here together: the node's, or what its cgroups leave. Local."""
    lines = (proc / "meminfo").read_text().splitlines()
    limits = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemTotal:")]
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for kind in {*controllers.split(",")} & {*_CGROUP}:
            folder = groups / kind / path.lstrip("/")
            for place in (folder, *folder.parents):
                if place.is_relative_to(groups / kind):
                    limits += _limit_in(place / _CGROUP[kind])
    return min(limits)


def _limit_in(file: Path) -> list[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() else []


def replay_bytes(
    config: RunConfig, plan: RankPlan, nodes: Sequence[str], node: str, spec: TrajectorySpec
) -> int:
    """What the replay memories of the replay ranks on `node` take in RAM; `nodes[r]` is that of rank r. Pure.

    Raises ConfigError naming the keys where one of them cannot be, or its limits would have everybody wait for ever.
    """
    from hpcrl.data.replay_memory import predicted_bytes
    from hpcrl.roles.memory_state import make_limiter, replay_layout

    total = 0
    for placement in plan.placements if config.algorithm.uses_replay else ():
        if placement.role != "replay":
            continue
        make_limiter(config, placement.role_rank)
        try:
            nbytes = predicted_bytes(replay_layout(config, spec, placement.role_rank), config.replay)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if nodes[placement.world_rank] == node and config.replay.memory_map is None:
            total += nbytes
    return total


def too_large(config: RunConfig, node: str, nbytes: int, limit: int) -> str:
    """Why replay memories of so many bytes on a node are refused under its memory limit; empty where they fit. Pure."""
    share = config.replay.max_memory_share
    if nbytes <= share * limit:
        return ""
    return (
        f"replay.capacity={config.replay.capacity} takes {nbytes / 1e9:.2f} GB on {node}, more than replay."
        f"max_memory_share={share:g} of the {limit / 1e9:.2f} GB there; lower the capacity, spread ranks.replay over "
        "more nodes, ask for more memory, or use replay.memory_map"
    )


def refusal(config: RunConfig, plan: RankPlan, nodes: Sequence[str], node: str, spec: TrajectorySpec) -> str:
    """Why the replay memories on `node`, which is this one, cannot be; empty where they can. Local."""
    try:
        return too_large(config, node, replay_bytes(config, plan, nodes, node, spec), memory_limit())
    except ConfigError as error:
        return str(error)
