"""Learners that sum by torch.distributed, on the CPU; and on a GPU, where there is one."""

import json

import numpy as np
import pytest

from tests.system.support import TOP, WITH_TESTS, run
from tests.system.test_determinism import CHAIN

CARTPOLE = str(TOP / "jobs" / "cartpole.py")
PPO = (
    "scheme=synchronous",
    'algorithm={"name": "ppo", "unroll_length": 8, "epochs": 2, "num_minibatches": 2}',
)


@pytest.mark.parametrize(
    ("settings", "forms"),
    [
        (("ranks.learners=2", "ranks.actors=2"), ("torch", "shared")),
        ((*PPO, "ranks.workers=3"), ("torch", "torch", "shared")),
    ],
    ids=["pipeline", "ppo"],
)
def test_learners_end_equal_and_as_with_sums_in_host_memory(tmp_path, settings, forms):
    """Bit-equal on all learners, and from run to run; the norm is rounded in another order than in host memory."""
    weights, norms = set(), []
    for index, form in enumerate(forms):
        settled = (*settings, "deterministic=true", f"reduction.form={form}", "comm.debug=true")
        ended = run(tmp_path / str(index), *settled, recipe=CHAIN, environ=WITH_TESTS)
        found = ended.weights()
        if form == "torch":
            weights.add(found)
            # elsewhere the writer, whose log is shown, is a replay rank
            assert "workers=3" not in settings[-1] or "torch.distributed (gloo)" in ended.stderr
        norms.append(ended.table("updates")["grad_norm"])
    assert len(weights) == 1
    np.testing.assert_allclose(norms[0], norms[-1], rtol=1e-3)


def test_a_learner_with_nothing_to_do_keeps_up(tmp_path):
    settings = (
        "algorithm.batch_trajectories=1",
        "ranks.learners=2",
        "ranks.actors=2",
        "reduction.form=torch",
    )
    assert run(tmp_path, *settings).weights()


def test_a_gpu_that_is_not_there_is_refused_by_all_at_once(tmp_path):
    settings = ("ranks.learners=2", "ranks.learner_device=cuda")
    refused = run(tmp_path, *settings, environ={"CUDA_VISIBLE_DEVICES": ""})
    assert refused.code == 2
    (line,) = refused.named_failures()
    assert "ranks.learner_device=cuda, but PyTorch finds no GPU" in line
    assert refused.run_dir is None


def test_auto_without_gpus_is_the_cpu(tmp_path):
    ended = run(tmp_path, "ranks.learner_device=auto", environ={"CUDA_VISIBLE_DEVICES": ""})
    assert ended.weights()
    assert set(ended.table("ranks")["device"]) == {b"cpu"}
    assert json.loads((ended.run_dir / "config.json").read_text())["ranks"]["learner_device"] == "auto"


@pytest.mark.gpu
@pytest.mark.parametrize("learners", [1, 2])
def test_cartpole_on_gpus(tmp_path, learners):
    """Two learners take two GPUs and nccl where there are two, else one in turn and gloo."""
    settings = ("ranks.learner_device=cuda", f"ranks.learners={learners}", "budget.env_steps=300000")
    ended = run(tmp_path, *settings, recipe=f"{CARTPOLE}:impala", timeout_s=240)
    assert ended.weights()
    ranks = ended.table("ranks")
    assert all(device.startswith(b"cuda:") for device in ranks["device"][ranks["role"] == b"learner"])
    assert set(ranks["device"][ranks["role"] != b"learner"]) == {b"cpu"}
    assert ended.describe()["evaluation"]["mean"] > 44  # twice that of a random policy


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_act_and_learn_on_gpus(tmp_path, workers):
    settings = ("ranks.learner_device=cuda", "budget.env_steps=30000")
    ended = run(tmp_path, *settings, recipe=f"{CARTPOLE}:ppo", ranks=workers, timeout_s=240)
    assert ended.weights()
    assert ended.describe()["evaluation"]["mean"] > 44
