"""What learners get of a replay memory, and actors hear of the run."""

import itertools

import numpy as np
import pytest

from hpcrl.algorithms.dqn import DQN as Algorithm
from tests.mpi.resume_support import BANDIT, DQN, REPLAY, attempt, folder, half, replayed

RANKS = {
    1: {"actors": 1, "replay": 1, "learners": 1},
    3: {"actors": 1, "replay": 1, "learners": 1},
    4: {"actors": 1, "replay": 1, "learners": 2},
}


@pytest.mark.parametrize("sampling", ["prioritized", "uniform"])
@pytest.mark.parametrize("batch_size", [5, 1])
def test_batches_weights_and_env_steps(comm, monkeypatch, sampling, batch_size):
    """Shares of a batch lie one after the other, also empty ones; the largest weight is 1; actors know how far."""
    batches, heard = [], []
    update, exploration = Algorithm.update, Algorithm.exploration

    def note_update(self, batch, reducer, progress):
        weights = batch.fields["weight"].flatten().tolist()
        batches.append((batch.update, batch.column_offset, batch.total_columns, weights, progress))
        return update(self, batch, reducer, progress)

    def note_exploration(self, envs, num_envs, env_steps):
        heard.append(env_steps)
        return exploration(self, envs, num_envs, env_steps)

    monkeypatch.setattr(Algorithm, "update", note_update)
    monkeypatch.setattr(Algorithm, "exploration", note_exploration)
    replay = REPLAY | {"sampling": sampling, "samples_per_insert": batch_size / 20}
    sections = {"algorithm": DQN | {"batch_size": batch_size}, "replay": replay, "budget": {"env_steps": 400}}
    with half(comm) as world, folder(world) as path:
        settings = replayed(world.size, deterministic=False, env=BANDIT, ranks=RANKS[world.size], **sections)
        assert attempt(world, path, settings) == 0
        everything = list(itertools.chain.from_iterable(world.allgather(batches)))
        heard = max(world.allgather(heard), key=len)
    numbers = sorted({update for update, *_ in everything})
    assert numbers == list(range(len(numbers))) and len(numbers) > 5
    for number in numbers:
        shares = sorted(
            (one for one in everything if one[0] == number), key=lambda one: (one[1], len(one[3]))
        )
        ends = np.cumsum([len(weights) for *_, weights, _ in shares])
        assert [offset for _, offset, *_ in shares] == [0, *ends[:-1]]
        assert {total for _, _, total, _, _ in shares} == {batch_size} == {ends[-1]}
        weights = list(itertools.chain.from_iterable(weights for *_, weights, _ in shares))
        assert max(weights) == 1.0 and min(weights) > 0
        assert len({progress for *_, progress in shares}) == 1
        assert sampling == "prioritized" or set(weights) == {1.0}
    assert heard[0] == 0 and heard == sorted(heard)
    assert heard[-1] > REPLAY["min_size"]
