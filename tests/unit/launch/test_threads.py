import os
import subprocess
import sys

import pytest

from hpcrl.config import RunConfig
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


@pytest.mark.parametrize(
    ("model", "algorithm", "learners", "threads"),
    [
        ({}, {}, 1, 1),
        ({"hidden_sizes": [256]}, {"num_minibatches": 1}, 1, 1),
        ({"hidden_sizes": []}, {}, 1, 1),
        ({"hidden_sizes": [256, 256]}, {"num_minibatches": 8}, 1, 4),  # 256 rows
        ({"hidden_sizes": [256, 256]}, {"num_minibatches": 16}, 1, 1),
        ({"hidden_sizes": [256, 256]}, {"num_minibatches": 8}, 2, 1),
        ({"hidden_sizes": [64, 64]}, {"num_minibatches": 1}, 1, 1),
        ({"torso": "nature_cnn"}, {}, 1, 4),
    ],
)
def test_no_more_threads_than_pay(monkeypatch, model, algorithm, learners, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for scheme, ranks in (
        ("pipeline", {"actors": 2, "learners": learners}),
        ("synchronous", {"workers": learners}),
    ):
        config = RunConfig.parse(
            {
                "name": "x",
                "scheme": scheme,
                "env": {"id": "x", "num_envs": 16},
                "model": model,
                "algorithm": {"name": "ppo", "unroll_length": 128} | algorithm,
                "ranks": ranks,
            }
        )
        assert threads_per_rank(2, useful_threads(config)) == threads


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
