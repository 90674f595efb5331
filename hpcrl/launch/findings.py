"""What will make runs slow or fail, one sentence each. All pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from hpcrl.comm.ranks import crowded_nodes

_LITTLE_SHARED_BYTES = 256 << 20
_SLOW_LINK_BYTES_PER_S = 1e9 / 8
_MUCH_SLOWER = 1.5
_SHARED_FRACTION = 0.9
"""Of what is free in /dev/shm; a run leaves the rest."""


def of_seats(seats: Sequence[dict[str, Any]]) -> list[str]:
    """About nodes and what their ranks may use; `seats` as `doctor.look_around` makes them."""
    found = [f"{sentence}: expect them to take turns" for sentence in crowded_nodes(seats)]
    for node, here in by_node(seats).items():
        first = here[0]
        found += _about_cores(node, here)
        if first["shared_free_bytes"] < _LITTLE_SHARED_BYTES:
            found.append(
                f"{first['shared_free_bytes'] >> 20} MB are free in /dev/shm of {node}: ranks of a node may have to "
                "send messages; ask for more memory, or remove what is left there"
            )
        if not first["locks"]:
            found.append(
                f"{first['folder']} ({first['file_system']}) on {node} has no file locks: a second writer is not "
                "noticed, and HDF5 needs hdf5_locking = false in the site profile"
            )
    return found


def _about_cores(node: str, here: Sequence[dict[str, Any]]) -> list[str]:
    first, cores = here[0], {core for seat in here for core in seat["cores"]}
    found = []
    threads = sum(seat["threads"] for seat in here)
    if threads > len(cores) >= len(here):
        found.append(
            f"{len(here)} ranks x {first['threads']} threads are more than the {len(cores)} cores on {node}; "
            "set OMP_NUM_THREADS lower, or ask for more cores per rank"
        )
    for seat in here:
        mine = len(seat["cores"])
        if mine < seat["cores_before_mpi"]:
            found.append(
                f"rank {seat['rank']} on {node} may use {mine} of its {seat['cores_before_mpi']} cores since MPI has "
                "started: switch the binding of the launcher or of the MPI library off"
            )
        elif seat["cores_per_task"] is not None and mine < seat["cores_per_task"]:
            found.append(
                f"rank {seat['rank']} on {node} may use {_cores(mine)}, but SLURM_CPUS_PER_TASK="
                f"{seat['cores_per_task']}: start with srun --cpus-per-task={seat['cores_per_task']}"
            )
    if len(cores) < first["cores_of_node"] and not found:
        found.append(
            f"{_cores(len(cores))} of the {first['cores_of_node']} on {node} may be used: if that is not meant, look "
            "for a binding (taskset, the launcher's, --cpus-per-task)"
        )
    return found


def of_needs(needs: Sequence[dict[str, Any]], seats: Sequence[dict[str, Any]], device: str) -> list[str]:
    """About a recipe on these nodes. `device`: ranks.learner_device."""
    found = []
    nodes = by_node(seats)
    for need in needs:
        node, here = need["node"], nodes[need["node"]]
        first, cores = here[0], {core for seat in here for core in seat["cores"]}
        if need["ranks"] > len(here) and need["ranks"] > len(cores):
            found.append(
                f"the recipe's {need['ranks']} ranks would share {_cores(len(cores))} if all ran on {node}"
            )
        elif need["env_threads"] and need["env_threads"] + need["ranks"] > len(cores):
            found.append(
                f"{need['ranks']} ranks and {need['env_threads']} threads or processes of environments are more than "
                f"the {_cores(len(cores))} on {node}: lower env.num_threads or env.num_groups, or use "
                "env.vectorization=sync"
            )
        if need["shared_bytes"] > _SHARED_FRACTION * first["shared_free_bytes"]:
            found.append(
                f"the recipe wants {megabytes(need['shared_bytes'])} of shared memory on {node}, where "
                f"{megabytes(first['shared_free_bytes'])} are free in /dev/shm: messages would be sent instead; ask "
                "for more memory, or lower comm.slots, lag.max_lag or algorithm.unroll_length"
            )
        if need["replay_bytes"] > need["replay_share"] * first["memory_bytes"]:
            found.append(
                f"the recipe's replay memory would take {megabytes(need['replay_bytes'])} on {node}, more than "
                f"replay.max_memory_share={need['replay_share']:g} of the {megabytes(first['memory_bytes'])} there: "
                "the run would be refused"
            )
        found += _about_devices(need, first, device)
    return found


def _about_devices(need: dict[str, Any], seat: dict[str, Any], device: str) -> list[str]:
    learners = need["roles"].get("learner", 0) + need["roles"].get("worker", 0)
    if device == "cpu" or not learners:
        return []
    if seat["gpus"] == 0:
        becomes = "the run would be refused" if device == "cuda" else "they would compute on its CPU"
        return [f"ranks.learner_device={device}, but {need['node']} has no GPU for its learners: {becomes}"]
    if learners > seat["gpus"]:
        return [f"{learners} learners share {seat['gpus']} GPU{'s' * (seat['gpus'] > 1)} on {need['node']}"]
    return []


def of_speeds(speeds: dict[str, Any]) -> list[str]:
    """About what `bench.mpi.speeds` has measured; nothing for {}."""
    found = [
        f"{' and '.join(link['nodes'])}: {8 * link['bytes_per_s'] / 1e9:.2f} Gbit/s between them; look whether MPI "
        "uses the network that is meant for it"
        for link in speeds.get("links", [])
        if link["kind"] == "between nodes" and link["bytes_per_s"] < _SLOW_LINK_BYTES_PER_S
    ]
    sums = speeds.get("sums")
    if sums and sums["hpcrl_s"] > _MUCH_SLOWER * sums["allreduce_s"]:
        found.append(
            f"a sum of {megabytes(sums['bytes'])} takes {1e3 * sums['hpcrl_s']:.1f} ms, the MPI library's Allreduce "
            f"{1e3 * sums['allreduce_s']:.1f} ms: see `hpcrl bench reduce`"
        )
    return found


def by_node(seats: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Seats of each node, in the order in which nodes first appear."""
    nodes: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for seat in seats:
        nodes[seat["node"]].append(seat)
    return dict(nodes)


def megabytes(nbytes: int) -> str:
    """For people."""
    return f"{nbytes / (1 << 20):.0f} MB" if nbytes >= 10 << 20 else f"{nbytes / (1 << 20):.1f} MB"


def _cores(number: int) -> str:
    return f"{number} core{'s' * (number != 1)}"
