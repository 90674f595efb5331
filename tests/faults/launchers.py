"""A run of three ranks, one of each role, to its end: started by mpiexec, as a job by srun, and by submitit."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tests.slurm.support import LIMIT_S, on_login_node, submit
from tests.system.support import TOP, TOY, start

RUN_DIR = "runs/it"
SITE = TOP / "slurm" / "testcluster.toml"


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    code: int
    text: str
    """What its ranks and its launcher said."""
    ended: float
    """time.monotonic() when that was known."""

    def lines(self) -> list[str]:
        """Those of hpcrl's own."""
        return [line for line in self.text.splitlines() if line.startswith("hpcrl: ")]


def by_mpiexec(
    cluster: object, folder: Path, settings: list[str], resume: str, environ: Mapping[str, str]
) -> Outcome:
    del cluster
    with start(folder, *settings, mpiexec=3, resume=resume, environ=environ) as running:
        ended = running.wait(LIMIT_S)
        return Outcome(ended.code, ended.stdout + ended.stderr, time.monotonic())


def by_srun(
    cluster: object, folder: Path, settings: list[str], resume: str, environ: Mapping[str, str]
) -> Outcome:
    """`hpcrl submit`: a job on two nodes whose script calls srun. It goes on with what is there."""
    del resume
    (folder / "job.json").write_text(json.dumps(TOY))
    with patch.dict(os.environ, environ):
        job = submit(cluster, folder, *settings, recipe="job.json")
    _, code = job.until_over()
    return Outcome(int(code.partition(":")[0]), job.text(), time.monotonic())


SUBMITIT = """\
import json, sys
from hpcrl.launch import RunFailedError, submit, submitted
submitted.LOOK_EVERY_S = 0.5
job = submit("job.json", executor="slurm", **json.loads(sys.argv[1]))
try:
    job.result()
    failure = ""
except RunFailedError as error:
    failure = str(error)
print(json.dumps({"failure": failure, "text": "\\n".join(job.logs())}))
"""


def by_submitit(
    cluster: object, folder: Path, settings: list[str], resume: str, environ: Mapping[str, str]
) -> Outcome:
    """`hpcrl.launch.submit` with its executor "slurm", on one node; the exit code is in what `result` raises."""
    (folder / "job.json").write_text(json.dumps(TOY))
    how = {
        "overrides": settings,
        "resume": resume,
        "site": str(SITE),
        "folder": str(folder / "jobs"),
        "nodes": 1,
    }
    with patch.dict(os.environ, environ):
        process = on_login_node(cluster, folder, [sys.executable, "-c", SUBMITIT, json.dumps(how)])
    output, errors = process.communicate()
    ended = time.monotonic()
    assert process.returncode == 0, errors
    answer = json.loads(output.splitlines()[-1])
    code = 0
    if answer["failure"]:
        assert "ended with exit code " in answer["failure"], answer
        code = int(answer["failure"].partition("ended with exit code ")[2].partition(":")[0])
    return Outcome(code, answer["text"], ended)


Launch = Callable[[object, Path, list[str], str, Mapping[str, str]], Outcome]
LAUNCH: dict[str, Launch] = {"mpiexec": by_mpiexec, "srun": by_srun, "submitit": by_submitit}
