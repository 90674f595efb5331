"""CartPole to its full budget on two nodes of a real Slurm, in every way to submit it."""

import re
import sys

import pytest

from tests.slurm.support import RECIPE, hpcrl, submit
from tests.slurm.test_submitit import answers, start

pytestmark = [pytest.mark.slurm_long, pytest.mark.usefixtures("idle")]

LIMIT_S = 600.0
IMPALA = f"{RECIPE}:impala"


def check_solved(cluster, run_dir, number, summary):
    assert {rank["node"] for rank in summary["ranks"]} == {"node1", "node2"}
    assert summary["evaluation"]["mean"] >= 475, summary["evaluation"]
    code, said, errors = hpcrl(cluster, run_dir.parent, "describe", run_dir)
    assert (code, errors) == (0, "")
    assert re.search(rf"^job +{number} on node\[1-2\]", said, re.MULTILINE), said
    assert "node1" in said and "node2" in said
    sys.stdout.write(
        f"{summary['evaluation']} after {summary['env_steps']:,} env_steps in {summary['wall_s']:.0f} s\n"
    )


@pytest.mark.parametrize("options", [[], ["--het", "--nodes", "1"]], ids=["one component", "heterogeneous"])
def test_cartpole_is_solved(cluster, tmp_path, options):
    job = submit(cluster, tmp_path, recipe=IMPALA, options=[*options, "--time", "10"])
    assert job.until_over(LIMIT_S) == ("COMPLETED", "0:0"), job.text()
    check_solved(cluster, job.run_dir, job.number, job.describe())


def test_cartpole_is_solved_through_submitit(cluster, tmp_path):
    with start(cluster, tmp_path, LIMIT_S, recipe=IMPALA, time="10") as process:
        (job,) = answers(process, 1)
        (answer,) = answers(process, 1)
    assert answer["state"] == "COMPLETED", answer
    check_solved(cluster, tmp_path / answer["summary"]["run_dir"], job["id"], answer["summary"])
