"""What the batch script does after an exit code, in a real Slurm: a stand-in for hpcrl ends as it is told."""

import subprocess

import pytest

from hpcrl.config import load_site
from hpcrl.launch import batch
from tests.slurm.support import RECIPE, Job, site_with

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("idle")]

STAND_IN = """\
#!/bin/sh
# Ends with the code or by the signal of this attempt, or with 75, also when srun ends the step meanwhile, and as hpcrl
# not before all ranks have started; rank 0 notes its arguments.
trap '' TERM
cd "$(dirname "$0")"
seed=${SLURM_ARRAY_TASK_ID:-0}
attempt=$((${SLURM_RESTART_COUNT:-0} + 1))
mktemp "here-$seed-$attempt-XXXXXX" > /dev/null
patience=600
while [ "$(ls "here-$seed-$attempt-"* | wc -l)" -lt RANKS ] && [ "$patience" -gt 0 ]; do
    sleep 0.1
    patience=$((patience - 1))
done
[ "$SLURM_PROCID" != 0 ] || echo "$@" "attempt=$attempt" >> "calls-$seed"
code=$(sed -n "${attempt}p" "codes-$seed")
[ "$code" != USR1 ] || kill -USR1 $$
exit "${code:-75}"
"""


@pytest.fixture
def start(cluster, tmp_path):
    """Submit the rendered script around the stand-in; its codes by seed and attempt."""

    def run(codes, *, wishes=batch.Wishes(), **changes):  # noqa: B008 - frozen
        program = tmp_path / "stand-in"
        for seed, of_seed in codes.items():
            (tmp_path / f"codes-{seed}").write_text("".join(f"{code}\n" for code in of_seed))
        site = load_site(str(site_with(tmp_path, command=str(program), **changes)))
        job = batch.plan_job(f"{RECIPE}:impala", ["name=x"], "testcluster", site, wishes, tmp_path)
        ranks = sum(component.ranks for component in job.components)
        program.write_text(STAND_IN.replace("RANKS", str(ranks)))
        program.chmod(0o755)
        sent = subprocess.run(
            cluster.on("head", ["sbatch", "--parsable"]),
            input=batch.render(job),
            capture_output=True,
            text=True,
            check=True,
        )
        number = sent.stdout.strip()
        return Job(cluster, number, tmp_path / f"x-{number}.log", tmp_path)

    return run


def calls(folder, seed=0):
    return (folder / f"calls-{seed}").read_text().splitlines()


def test_a_stopped_run_goes_on_in_the_same_job_and_directory(start, tmp_path):
    job = start({0: [75, 0]})
    assert job.until_over() == ("COMPLETED", "0:0"), job.text()
    assert job.field("Restarts") == "1"
    arguments = (
        f"run {RECIPE}:impala --set name=x --resume if-exists --set storage.run_dir=runs/x-0-{job.number}"
    )
    assert calls(tmp_path) == [f"{arguments} attempt={attempt}" for attempt in (1, 2)]
    assert job.text().count("requeueing job") == 1


def test_a_signal_that_comes_before_anybody_can_hear_it_is_a_stop(start, tmp_path):
    job = start({0: ["USR1", 0]})
    assert job.until_over() == ("COMPLETED", "0:0"), job.text()
    assert job.field("Restarts") == "1" and len(calls(tmp_path)) == 2
    assert "hpcrl ended with exit code 75\nrequeueing job" in job.text()


def test_only_so_many_attempts(start, tmp_path):
    job = start({0: []}, max_attempts=2)
    assert job.until_over() == ("FAILED", "75:0"), job.text()
    assert job.field("Restarts") == "1" and len(calls(tmp_path)) == 2
    assert "not requeued: this was attempt 2 of at most 2" in job.text()


def test_a_heterogeneous_job_goes_on(start, tmp_path):
    job = start({0: [75, 0]}, wishes=batch.Wishes(heterogeneous=True, nodes=1), nodes=1)
    assert job.until_over() == ("COMPLETED", "0:0"), job.text()
    assert len(calls(tmp_path)) == 2


def test_of_an_array_only_the_run_that_was_stopped_goes_on(start, tmp_path):
    job = start({0: [0], 1: [75, 0], 2: [0]}, wishes=batch.Wishes(seeds="0-2", nodes=1))
    job.until(lambda: job.cluster.run("squeue", "--noheader") == "")
    assert [len(calls(tmp_path, seed)) for seed in (0, 1, 2)] == [1, 2, 1]
    assert all(f"runs/x-1-{job.number} " in call and "seed=1" in call for call in calls(tmp_path, 1))


@pytest.mark.parametrize(
    ("code", "slurm_code", "how", "word"),
    [
        (75, 75, {"requeue": False}, "the site profile has requeue = false"),
        (1, 1, {}, None),
        (2, 2, {}, None),
        (3, 3, {}, None),
        (4, 4, {}, None),
        (139, 3, {}, None),
    ],
)
def test_what_is_not_requeued(start, tmp_path, code, slurm_code, how, word):
    job = start({0: [code]}, **how)
    assert job.until_over() == ("FAILED", f"{slurm_code}:0"), job.text()
    assert job.field("Restarts") == "0" and len(calls(tmp_path)) == 1
    assert (f"not requeued: {word}" in job.text()) if word else ("requeue" not in job.text())
