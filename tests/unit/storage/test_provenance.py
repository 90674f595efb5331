import json
import subprocess
import sys

import numpy as np
import pytest

from hpcrl.storage import provenance


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_everything_is_json_and_extra_wins():
    values = provenance.collect({"mpi_library": "none", "hostname": "renamed"})
    assert json.loads(json.dumps(values)) == values
    assert values["mpi_library"] == "none" and values["hostname"] == "renamed"
    assert values["versions"]["numpy"] == np.__version__
    assert values["versions"].keys() <= set(provenance.PACKAGES)
    assert values["num_usable_cores"] >= 1
    assert values["python"] == sys.version.split()[0]
    assert values["command"] == sys.argv


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("SLURM_JOB_ID", True),
        ("OMP_NUM_THREADS", True),
        ("MPICH_ASYNC_PROGRESS", True),
        ("HYDRA_BOOTSTRAP", True),
        ("PMI_RANK", True),
        ("CUDA_VISIBLE_DEVICES", True),
        ("SLURM_JWT", False),
        ("SLURM_AUTH_THING", False),
        ("PMIX_SERVER_URI4", False),
        ("MPI_SECRET_KEY", False),
        ("HOME", False),
        ("AWS_SECRET_ACCESS_KEY", False),
        ("GITHUB_TOKEN", False),
    ],
)
def test_only_scheduler_mpi_and_thread_variables_and_no_secrets(name, kept):
    assert provenance.environment({name: "x", "PATH": "y"}) == ({name: "x"} if kept else {})


def test_commit_and_uncommitted_changes_are_recorded(tmp_path):
    assert provenance.revision(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert provenance.revision(tmp_path) is None  # no commit yet
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "a")
    clean = provenance.revision(tmp_path, "a")
    assert len(clean["commit"]) == 40 and clean["dirty"] is False
    (tmp_path / "b").write_text("untracked")
    assert provenance.revision(tmp_path) == clean
    (tmp_path / "a").write_text("2")
    assert provenance.revision(tmp_path) == {"commit": clean["commit"], "dirty": True}
    assert provenance.revision(tmp_path, "b") is None  # an installed file inside somebody's working copy


def test_no_git_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.revision(tmp_path) is None
