"""The command line of `hpcrl plan`. Loads nothing that computes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

_HELP = """\
Some minutes: the environment, inference, updates, the replay memory, and a short run on one rank are measured on
this machine, each in a process of its own, and a short run on as few ranks as there are roles. From that follows what
every division of the ranks would do, and the best one is shown with the words that ask for it.

  hpcrl plan jobs/cartpole.py:impala                          on this machine: as many ranks as cores (at least 3)
  hpcrl plan jobs/atari.py:pong_impala --nodes 4 --cores-per-node 48 on nodes like this one
  hpcrl plan jobs/slow_solver.py:impala --ranks 6             more ranks than cores pay where environments sleep
  hpcrl plan jobs/cartpole.py:impala --ranks 3 --check        then run it for a while: predicted beside measured

Times are what the processes computed and slept, without what others here took away: the prediction is for nodes that
the job has to itself; but how much ranks slow each other down is what it was here, where they may be more crowded than
on those nodes. It is for cores like these and for the beginning of the training; other cores, episodes that take
longer later, or a slower network between nodes (--gbit) change it. Updates are measured on the CPU.

exit codes: 0 planned, 1 a measurement failed, 2 the recipe cannot be divided into so many ranks
(the smallest world that would do is named)
"""


def add_command(
    commands: Any, add_recipe: Callable[[argparse.ArgumentParser], None]
) -> argparse.ArgumentParser:
    """Add `plan` to the commands of hpcrl; `add_recipe` adds the arguments that name one."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "plan",
        help="before a job: the best division of the ranks, its speed, lag, memory, checkpoints and cost",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recipe(parser)
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes of the job (default: 1)")
    parser.add_argument("--cores-per-node", type=int, metavar="C", help="default: those of this machine")
    parser.add_argument(
        "--gbit", type=float, default=10.0, metavar="G", help="a node's link, Gbit/s (default: 10)"
    )
    parser.add_argument("--as-is", action="store_true", help="the recipe's own division, no other")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of the calibration; medians count (default: 3)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.6,
        metavar="S",
        help="that each part is measured for (default: 0.6)",
    )
    parser.add_argument(
        "--check", action="store_true", help="run it here, measure the parts again, and compare"
    )
    parser.add_argument(
        "--check-seconds", type=float, default=20.0, metavar="S", help="how long that run goes (default: 20)"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    return parser
