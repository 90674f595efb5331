"""Command line of the Slurm test cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from slurm.testcluster import daemons
from tests.cluster import hosts
from tests.cluster.command import EXIT_CODES, add_shape, guarded, run_program
from tests.cluster.hosts import HEAD

TEACH = """\
A real Slurm (munged, slurmctld, a slurmd per node) on emulated hosts of this machine: node1, node2, ... run jobs, the
host "head" is where people log in. Needs root, iproute2, util-linux, Slurm and munge.

  testcluster run -- sinfo
  testcluster run --nodes 2 -- srun --nodes=2 --mpi=pmi2 hpcrl bench comm

make a cluster for one command on the login node and take it away after it, also when this command is killed.

  testcluster up
  testcluster on head -- hpcrl submit jobs/cartpole.py:impala --site testcluster
  testcluster on head -- squeue
  testcluster down

keep it between commands. With --name several live side by side. There is no accounting database: `sacct` answers from
what the controller still knows.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _parser().parse_args(arguments)
    return guarded("testcluster", lambda: int(options.action(options)))


def _up(options: argparse.Namespace) -> int:
    slurm = daemons.up(options.name, options.nodes, options.rate)
    sys.stdout.write(slurm.run("sinfo"))
    return 0


def _down(options: argparse.Namespace) -> int:
    hosts.end(options.name)
    return 0


def _on(options: argparse.Namespace) -> int:
    return run_program(daemons.find(options.name).on(options.host, options.program))


def _run(options: argparse.Namespace) -> int:
    with daemons.temporary(options.nodes, options.rate) as slurm:
        return run_program(slurm.on(HEAD, options.program))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="testcluster",
        description=TEACH,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True, metavar="up | run | on | down")
    starting = actions.add_parser("up", help="start a cluster that stays until `down`")
    running = actions.add_parser("run", help="run a command on the login node of a new cluster")
    entering = actions.add_parser("on", help="run a command on one host: head, node1, node2, ...")
    ending = actions.add_parser("down", help="end the cluster, and whatever runs on it")
    for sub, action in ((starting, _up), (running, _run), (entering, _on), (ending, _down)):
        sub.set_defaults(action=action)
    for sub in (starting, running):
        add_shape(sub, 2)
    entering.add_argument("host")
    for sub in (running, entering):
        sub.add_argument("program", nargs="+", metavar="COMMAND", help="after -- if it has options")
    for sub in (starting, entering, ending):
        sub.add_argument("--name", default="slurm", help="of the cluster (slurm)")
    return parser
