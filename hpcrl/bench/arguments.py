"""The command line of `hpcrl bench`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

_BENCHES = {
    "reduce": "sums of gradients: memory, the MPI library, gloo, the link",
    "comm": "trajectories into the store, fan-in, waiting",
    "publish": "parameters from the learner to the actors",
    "replay": "a prioritized memory beside cpprb and tianshou, and as shards",
    "replay-link": "batches from the replay rank to the learner",
}
_BENCH_HELP = """\
By hand, ranks of this machine are started. Under mpiexec or srun the world that is there is measured, between its
nodes too:

  srun --ntasks-per-node=4 hpcrl bench reduce

Ratios of one run are the result; absolute figures are the machine's.
"""


def add_recipe_benches(
    kinds: Any,
    add_recipe: Callable[[argparse.ArgumentParser], None],
    command: Callable[[argparse.Namespace], int],
) -> None:
    """Add those that run a recipe, which `command` does."""
    loop = kinds.add_parser("loop", help="end to end against its parts and a CleanRL-style reference")
    equal = kinds.add_parser("equal", help="PPO at equal work: a CleanRL-style loop, one process, a pipeline")
    scale = kinds.add_parser("scale", help="whole runs with more and more actors: what they bring")
    solve = kinds.add_parser("solve", help="until the task is solved: the recipe beside a CleanRL-style loop")
    watch = kinds.add_parser(
        "watch", help="whole runs alone and with readers that are killed again and again"
    )
    kinds_of = {"loop": loop, "equal": equal, "scale": scale, "solve": solve, "watch": watch}
    for what, bench in kinds_of.items():
        rounds = 1 if what == "scale" else 3
        add_recipe(bench)
        bench.add_argument(
            "--rounds", type=int, default=rounds, help="interleaved rounds; medians are reported"
        )
        bench.add_argument("--json", action="store_true", help="as one JSON object")
        bench.set_defaults(command=command, what=what)
    equal.add_argument("--updates", type=int, default=20, help="of each measurement (default: 20)")
    watch.add_argument("--every", type=float, default=0.05, metavar="S", help="between looks (default: 0.05)")
    scale.add_argument("--actors", type=numbers, default=(4, 8, 16, 32), metavar="4,8,16,32")
    solve.add_argument("--score", type=float, required=True, help="mean greedy return that counts as solved")
    solve.add_argument("--every", type=int, default=5000, metavar="N", help="env_steps between two checks")
    solve.add_argument(
        "--reference-env-steps", type=int, default=500_000, metavar="N", help="where that gives up"
    )


def add_rank_benches(kinds: Any, command: Callable[[argparse.Namespace], int]) -> None:
    """Add those that measure ranks, which `command` does."""
    raw = argparse.RawDescriptionHelpFormatter
    for what, help_text in _BENCHES.items():
        bench = kinds.add_parser(what, help=help_text, epilog=_BENCH_HELP, formatter_class=raw)
        bench.add_argument("--rounds", type=int, default=15, help="interleaved rounds; medians are reported")
        bench.add_argument("--sizes", type=_sizes, default=(), metavar="1M,16M", help="bytes, with K or M")
        bench.add_argument("--ranks", type=numbers, default=(), metavar="2,4", help="worlds to start")
        bench.add_argument("--json", action="store_true", help="as one JSON object")
        bench.set_defaults(command=command, what=what, parameters=None)
        if what == "reduce":
            predicted = bench.add_argument_group("how long one sum would take, in every form")
            predicted.add_argument("--parameters", type=int, metavar="P", help="of the network, float32")
            predicted.add_argument("--nodes", type=int, metavar="N")
            predicted.add_argument("--ranks-per-node", type=int, metavar="L")
            predicted.add_argument(
                "--gbit", type=float, metavar="G", help="a node's link, Gbit/s; else measured"
            )


def _sizes(text: str) -> tuple[int, ...]:
    units = {"K": 1 << 10, "M": 1 << 20}
    sizes = [part.strip().removesuffix("B") for part in text.upper().split(",")]
    return tuple(int(size.rstrip("KM")) * units.get(size[-1:], 1) for size in sizes)


def numbers(text: str) -> tuple[int, ...]:
    """Numbers with commas between them."""
    return tuple(int(part) for part in text.split(","))
