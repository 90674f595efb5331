import os
import subprocess
import sys

import pytest

from hpcrl.launch.threads import limit_threads, threads_per_rank, useful_threads


@pytest.mark.parametrize(
    ("cores", "ranks", "given", "threads"),
    [
        (8, 1, None, 8),
        (8, 2, None, 4),
        (8, 3, None, 2),
        (8, 8, None, 1),
        (8, 9, None, 1),
        (1, 4, None, 1),
        (8, 0, None, 8),
        (8, 2, "3", 3),
        (2, 4, "16", 16),
        (8, 2, "1", 1),
        (8, 2, "0", 4),
        (8, 2, "", 4),
        (8, 2, "many", 4),
        (8, 2, "-1", 4),
    ],
)
def test_threads_per_rank(monkeypatch, cores, ranks, given, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert threads_per_rank(ranks) == threads


@pytest.mark.parametrize(("torso", "threads"), [("mlp", 1), ("nature_cnn", 4)])
def test_no_more_threads_than_pay(monkeypatch, torso, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads_per_rank(2, useful_threads(torso)) == threads


def test_what_the_user_set_stays(monkeypatch):
    monkeypatch.setattr(os, "environ", {"MKL_NUM_THREADS": "5"})
    limit_threads(2)
    assert os.environ == {"MKL_NUM_THREADS": "5", "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}


@pytest.mark.parametrize("threads", [1, 3])
def test_torch_uses_them_whatever_it_read_at_import(threads):
    code = (
        "import torch; from hpcrl.launch.threads import set_torch_threads\n"
        f"print(set_torch_threads({threads}), torch.get_num_threads())"
    )
    environ = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(threads)] * 2
