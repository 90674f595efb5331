import json
import os
import subprocess
import sys

import pytest

from hpcrl.comm.ranks import crowded_nodes


def seats(*nodes):
    return [{"node": node, "cores": cores} for node, cores in nodes]


CASES = {
    "nobody": ([], []),
    "four ranks bound to one core": (seats(*[("n1", [0])] * 4), ["4 ranks share 1 core on n1"]),
    "four ranks on two cores": (seats(*[("n1", [0, 1])] * 4), ["4 ranks share 2 cores on n1"]),
    "a core for each, bound": (seats(("n1", [0]), ("n1", [1]), ("n1", [2])), []),
    "a core for each, unbound": (seats(*[("n1", [0, 1])] * 2), []),
    "two of three on one core": (
        seats(("n1", [0]), ("n1", [0]), ("n1", [1])),
        ["3 ranks share 2 cores on n1"],
    ),
    "one rank": (seats(("n1", [5])), []),
    "only the second node": (
        seats(("n1", [0, 1]), ("n2", [0]), ("n1", [0, 1]), ("n2", [0])),
        ["2 ranks share 1 core on n2"],
    ),
    "both nodes": (
        seats(("n1", [0]), ("n2", [0]), ("n1", [0]), ("n2", [0]), ("n2", [0])),
        ["2 ranks share 1 core on n1", "3 ranks share 1 core on n2"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_ranks_that_outnumber_their_cores(case):
    given, sentences = CASES[case]
    assert crowded_nodes(given) == sentences


def test_processes_that_really_share_a_core():
    """What `taskset -c N` leaves to a process is what a seat records."""
    core = min(os.sched_getaffinity(0))
    code = "import json, os; print(json.dumps(sorted(os.sched_getaffinity(0))))"
    command = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\n{code}"]
    found = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() for _ in range(2)
    ]
    cores = [json.loads(one) for one in found]
    assert crowded_nodes(seats(*[("here", one) for one in cores])) == ["2 ranks share 1 core on here"]
