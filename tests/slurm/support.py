"""Jobs of the test cluster, submitted as a person does it: `hpcrl submit` on the login node."""

import contextlib
import json
import os
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from hpcrl.storage import read_table
from hpcrl.storage.summary import describe
from tests.system.support import TOP, TOY

RECIPE = TOP / "jobs" / "cartpole.py"
LIMIT_S = 240.0
"""For giving up. Slurm itself lets a requeued job wait for one to two minutes."""
SMALL = ("budget.env_steps=30000", "evaluation.episodes=2")
FOREVER = ("budget.env_steps=1000000000",)
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@dataclass(frozen=True)
class Job:
    """A job that was submitted, and what it leaves in its folder."""

    cluster: object
    number: str
    log: Path
    run_dir: Path

    def field(self, name):
        """A value of `scontrol show job`, as in JobState=COMPLETED; of the first component or array task."""
        text = self.cluster.run("scontrol", "--oneliner", "show", "job", self.number)
        return next(word for word in text.split() if word.startswith(f"{name}=")).partition("=")[2]

    def until(self, ready, within_s=LIMIT_S):
        wait_until(ready, lambda: f"{self.field('JobState')}: {self.text()}", within_s)

    def until_over(self, within_s=LIMIT_S):
        """Its final state and exit code, as ("COMPLETED", "0:0")."""
        self.until(lambda: self.field("JobState") in OVER, within_s)
        return self.field("JobState"), self.field("ExitCode")

    def text(self):
        return self.log.read_text() if self.log.exists() else "(no log)"

    def describe(self):
        return describe(self.run_dir)


def wait_until(ready, what=lambda: "", within_s=LIMIT_S):
    deadline = time.monotonic() + within_s
    while not ready():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def until_updates(run_dir, number, attempt=1):
    """Wait until that attempt of a run has made so many updates; those of earlier ones do not count."""

    def ready():
        return (
            Path(run_dir).is_dir() and (read_table(run_dir, "updates")["attempt"] == attempt).sum() >= number
        )

    wait_until(ready)


def kill_last_rank(cluster, run_dir):
    """Kill the rank with the highest number; the node it was on."""
    victim = read_table(run_dir, "ranks")[-1]
    node = victim["node"].decode()
    cluster.run("kill", "-KILL", str(victim["pid"]), host=node)
    return node


def kill_all_ranks(cluster, run_dir):
    """SIGKILL to every rank of the last attempt at once, as far as that goes."""
    ranks = read_table(run_dir, "ranks")
    ranks = ranks[-int(ranks["world_rank"].max() + 1) :]
    for node in sorted(set(ranks["node"])):
        pids = map(str, ranks["pid"][ranks["node"] == node])
        cluster.run("sh", "-c", f"kill -KILL {' '.join(pids)} || true", host=node.decode())


def on_login_node(cluster, folder, command, limit_s=2 * LIMIT_S):
    """A process of `command` there, in `folder`, with this package and with pipes; it ends after a while anyhow."""
    with contextlib.chdir(folder):
        command = cluster.on("head", ["timeout", f"{limit_s:.0f}", *command])
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOP), os.environ.get("PYTHONPATH", "")])}
    environ.pop("OMP_NUM_THREADS", None)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environ, text=True, **pipes)


def hpcrl(cluster, folder, *arguments):
    """`hpcrl` on the login node, in `folder`: exit code, output, errors."""
    process = on_login_node(cluster, folder, [sys.executable, "-m", "hpcrl", *map(str, arguments)])
    output, errors = process.communicate()
    return process.returncode, output, errors


def submit(cluster, folder, *settings, recipe=f"{RECIPE}:impala", site="testcluster", options=()):
    """`hpcrl submit`, and the job that it says there is. Nothing of it runs on after `cancel_all`."""
    arguments = [part for setting in settings for part in ("--set", setting)]
    site = TOP / "slurm" / f"{site}.toml" if isinstance(site, str) else site
    code, output, errors = hpcrl(cluster, folder, "submit", recipe, "--site", site, *arguments, *options)
    assert (code, errors) == (0, "")
    first, log, run, *_ = output.splitlines()
    assert first.startswith("job ") and log.startswith("log ") and run.startswith("run ")
    number = first.removeprefix("job ").partition(":")[0]
    return Job(cluster, number, Path(log.removeprefix("log ")), folder / run.removeprefix("run "))


def later_jobs(first, count):
    """The other jobs of a chain of `count`; nobody else submits meanwhile."""
    numbers = range(int(first.number) + 1, int(first.number) + count)
    return [Job(first.cluster, str(number), first.log, first.run_dir) for number in numbers]


def submit_by_hand(cluster, folder, recipe, *settings, options=(), variables=None):
    """The script to edit by hand, on two nodes."""
    site = tomllib.loads((TOP / "slurm" / "testcluster.toml").read_text())
    variables = [f"{name}={value}" for name, value in (site["environment"] | (variables or {})).items()]
    arguments = [part for setting in settings for part in ("--set", setting)]
    script = [str(TOP / "slurm" / "train.sbatch"), recipe, *arguments]
    process = on_login_node(
        cluster, folder, ["env", *variables, "sbatch", "--parsable", "--nodes=2", *options, *script]
    )
    output, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    number = output.strip()
    return Job(cluster, number, folder / f"hpcrl-{number}.log", folder / "runs" / f"hpcrl-{number}")


def site_with(folder, **changes):
    """The test cluster's profile with other top-level values, as a file of its own."""
    lines = (TOP / "slurm" / "testcluster.toml").read_text().splitlines()
    kept = [line for line in lines if line.partition(" = ")[0] not in changes]
    (folder / "site.toml").write_text(
        "\n".join([*(f"{key} = {json.dumps(value)}" for key, value in changes.items()), *kept])
    )
    return folder / "site.toml"


def toy_recipe(folder):
    """A recipe of about ten updates."""
    (folder / "toy.json").write_text(json.dumps(TOY))
    return "toy.json"


CUT = TOY | {
    "name": "cut",
    "env": {"id": "chain", "engine": "toy", "num_envs": 6, "kwargs": {"seconds_per_step": 0.008}},
    "deterministic": True,
    "budget": {"env_steps": 4000},
    "evaluation": {"episodes": 0},
}
"""A run of about 80 updates and six seconds, most of them sleep, whose environments can be saved."""

CUT_WORKERS = CUT | {
    "scheme": "synchronous",
    "ranks": {"workers": 3},
    "budget": {"env_steps": 3000},
    "env": CUT["env"] | {"kwargs": {"seconds_per_step": 0.015}},
    "algorithm": {"name": "ppo", "unroll_length": 8, "epochs": 2, "num_minibatches": 2},
}
"""The same in eight seconds."""


def cut_recipe(folder, recipe=CUT):
    """A recipe whose run lasts long enough to be cut into attempts."""
    (folder / "cut.json").write_text(json.dumps(recipe))
    return "cut.json"


def check_same_run(cut, whole, attempts):
    """Summaries: a run that was cut into so many attempts has ended as one that was not."""
    assert (cut["status"], cut["attempts"]) == ("finished", attempts)
    assert (whole["status"], whole["attempts"]) == ("finished", 1)
    assert cut["env_steps"] == whole["env_steps"]
    assert cut["weights_sha256"] == whole["weights_sha256"]


def cancel_all(cluster):
    """End whatever a failed test has left, so that the next one finds idle nodes."""
    cluster.run("scancel", "--full", "--user=root")
    wait_until(lambda: not cluster.run("squeue", "--noheader"))
