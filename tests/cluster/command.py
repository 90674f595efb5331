"""Command line of the emulated cluster."""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from tests.cluster import mpi
from tests.cluster.hosts import Cluster, ClusterError, Unavailable, clusters, end, find, temporary, up

UNAVAILABLE = 69
"""Exit code where this machine or user cannot have emulated hosts (EX_UNAVAILABLE)."""
USAGE = 2

TEACH = """\
Two to four hosts on this machine, each with its own name, /dev/shm, process ids and network, on cables of a given
rate. The file system is shared. Needs root, iproute2 and util-linux.

  cluster run --nodes 2 --ranks-per-node 2 -- hpcrl run jobs/cartpole.py:impala --set ranks.actors=2
  cluster run --ranks-per-node 3,1 --rate 100mbit -- python -m mpi4py.bench ringtest

make hosts for one MPI program and take them away after it, also after Ctrl-C or when this command is killed.

  cluster up --nodes 2
  cluster on node1 -- ip -brief address
  cluster run --name default --ranks-per-node 2 -- hostname
  cluster down

keep hosts between commands. With --name several such clusters live side by side.
"""
EXIT_CODES = f"""\
exit codes: that of what `run` or `on` ran; {UNAVAILABLE} where hosts cannot be made here; {USAGE} for wrong use."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return guarded("cluster", lambda: int(options.action(options)))


def guarded(program: str, action: Callable[[], int]) -> int:
    """The exit code of `action`, or of the sentence that says why it could not be."""
    try:
        return action()
    except Unavailable as error:
        sys.stderr.write(f"{program}: {error}\n")
        return UNAVAILABLE
    except ClusterError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return USAGE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _up(options: argparse.Namespace) -> int:
    cluster = up(options.name, options.nodes or 2, options.rate, options.delay)
    sys.stdout.write(_line(cluster) + "\n")
    return 0


def _down(options: argparse.Namespace) -> int:
    end(options.name)
    return 0


def _list(options: argparse.Namespace) -> int:
    for cluster in clusters():
        sys.stdout.write(_line(cluster) + "\n")
    return 0


def _on(options: argparse.Namespace) -> int:
    return run_program(find(options.name).on(options.host, options.program))


def _run(options: argparse.Namespace) -> int:
    with _hosts(options) as cluster:
        ranks = options.ranks_per_node
        if len(ranks) == 1:
            ranks = ranks * (options.nodes or len(cluster.nodes))
        return run_program(mpi.command(cluster, ranks, options.program))


@contextlib.contextmanager
def _hosts(options: argparse.Namespace) -> Iterator[Cluster]:
    """Those of --name, or new ones for the length of the block."""
    if options.name is not None:
        yield find(options.name)
        return
    nodes = options.nodes or max(2, len(options.ranks_per_node))
    with temporary(nodes, options.rate, options.delay) as cluster:
        yield cluster


def run_program(command: Sequence[str]) -> int:
    """Run to the end, passing signals on: mpiexec hands INT to the ranks and ends them after TERM. Its exit code."""
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process is None:
            raise KeyboardInterrupt
        process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    # a session of its own: Ctrl-C of the terminal comes once, from here
    process = subprocess.Popen(command, start_new_session=True)
    code = process.wait()
    return code if code >= 0 else 128 - code


def add_shape(parser: argparse.ArgumentParser, nodes: int | None) -> None:
    """Options for the number of hosts, by default `nodes` (None: 2, once it is known that hosts are to be made)."""
    parser.add_argument(
        "--nodes", type=int, choices=range(1, 17), default=nodes, metavar="N", help="hosts for ranks (2)"
    )
    parser.add_argument(
        "--rate", type=_rate, default="1gbit", help="of each cable, each direction, or none (1gbit)"
    )


def _line(cluster: Cluster) -> str:
    delay = "" if cluster.delay == "none" else f", delay {cluster.delay}"
    return f"{cluster.name}: {' '.join(cluster.nodes)}, rate {cluster.rate}{delay}"


def _rate(text: str) -> str:
    return _matching(text, r"none|\d+[kmg]?bit", "a rate is none or like 1gbit, 100mbit")


def _delay(text: str) -> str:
    return _matching(text, r"none|\d+(us|ms)", "a delay is none or like 100us, 2ms")


def _matching(text: str, pattern: str, advice: str) -> str:
    if not re.fullmatch(pattern, text):
        raise argparse.ArgumentTypeError(f"{advice}, not {text!r}")
    return text


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cluster",
        description=TEACH,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True, metavar="up | run | on | list | down")

    def action(name: str, function: object, help_text: str) -> argparse.ArgumentParser:
        sub = actions.add_parser(name, help=help_text, description=help_text)
        sub.set_defaults(action=function)
        return sub

    starting = action("up", _up, "start hosts that stay until `down`")
    running = action("run", _run, "run an MPI program on the ranks of several hosts")
    for sub in (starting, running):
        add_shape(sub, None)
        sub.add_argument(
            "--delay", type=_delay, default="none", help="added one way at each end; needs netem (none)"
        )
    running.add_argument(
        "--ranks-per-node",
        type=_counts,
        default=[1],
        metavar="N[,N...]",
        help="one number, or one per node (1)",
    )
    running.add_argument("--name", help="use the hosts that `up --name NAME` started instead of new ones")
    entering = action("on", _on, "run a command on one host: head, node1, node2, ...")
    entering.add_argument("host")
    for sub in (running, entering):
        sub.add_argument(
            "program", nargs="+", metavar="COMMAND", help="what to run, after -- if it has options"
        )
    action("list", _list, "the clusters that are up")
    ending = action("down", _down, "end the hosts, and whatever runs on them")
    for sub in (starting, entering, ending):
        sub.add_argument("--name", default="default", help="of the cluster (default)")
    return parser
