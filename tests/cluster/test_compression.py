"""CartPole is solved whatever crosses the nodes: two nodes of two learners each, every kind of compression."""

import contextlib
import sys

import pytest

from tests.cluster import mpi
from tests.cluster.hosts import temporary
from tests.learning.test_solved import CARTPOLE, SOLVED
from tests.learning.test_soon import final_return
from tests.system.support import Running

pytestmark = [pytest.mark.learning, pytest.mark.usefixtures("permitted")]


@pytest.mark.parametrize("compression", ["none", "bf16", "int8", "topk"])
def test_ppo_on_two_nodes(tmp_path, compression):
    command = [sys.executable, "-m", "hpcrl", "run", f"{CARTPOLE}:ppo"]
    for setting in ("ranks.workers=4", f"reduction.compression={compression}"):
        command += ["--set", setting]
    with temporary(2) as cluster:
        with contextlib.chdir(tmp_path):
            running = Running(mpi.command(cluster, [2, 2], command), tmp_path, {})
        try:
            ended = running.wait(900)
        finally:
            running.kill_everything()
    assert final_return(ended) >= SOLVED["cartpole"]
    assert len({row["node"] for row in ended.table("ranks")}) == 2
    ended.weights()  # equal on all learners
