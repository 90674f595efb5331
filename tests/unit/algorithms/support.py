"""What the tests of algorithms share: environments' specs, made-up batches, learners as threads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcrl.algorithms import Batch, UpdateResult, algorithm_class
from hpcrl.algorithms.actor_critic import ActorCriticAlgorithm
from hpcrl.config import (
    A2CConfig,
    AlgorithmConfig,
    DecoupledPPOConfig,
    ImpactConfig,
    ImpalaConfig,
    ModelConfig,
    PPOConfig,
)
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec

DISCRETE = EnvSpec(
    id="Discrete-v0",
    observation=ArraySpec(shape=(4,), dtype="float32"),
    action=ActionSpec(kind="discrete", size=3),
)
CONTINUOUS = EnvSpec(
    id="Continuous-v0",
    observation=ArraySpec(shape=(4,), dtype="float32"),
    action=ActionSpec(kind="continuous", size=3, low=(-1, -1, -1), high=(1, 1, 1)),
)
SMALL = ModelConfig(hidden_sizes=(8,))
CONFIGS: dict[str, AlgorithmConfig] = {
    "a2c": A2CConfig(learning_rate=3e-3),
    "decoupled_ppo": DecoupledPPOConfig(
        learning_rate=3e-3, epochs=2, num_minibatches=3, behavior_weight_cap=1.5
    ),
    "impact": ImpactConfig(learning_rate=3e-3, epochs=2, num_minibatches=3, dual_clip=3.0),
    "impala": ImpalaConfig(learning_rate=3e-3),
    "ppo": PPOConfig(learning_rate=3e-3, epochs=2, num_minibatches=3, dual_clip=3.0, value_clip=0.5),
}
TIMEOUT_S = 60.0

torch.set_num_threads(1)  # the learners are threads already


def build(
    config: AlgorithmConfig, env: EnvSpec = DISCRETE, model: ModelConfig = SMALL, seed: int = 0
) -> ActorCriticAlgorithm:
    return algorithm_class(config.name)(config, env, model, seed)


def without_noise(result: UpdateResult) -> dict[str, float]:
    """Metrics that do not depend on how the samples are divided; the estimates of noise do."""
    noise = ("grad_square", "grad_variance", "noise_scale")
    return {name: value for name, value in result.metrics.items() if name not in noise}


def random_batch(
    env: EnvSpec, unroll_length: int, num_columns: int, seed: int, update: int = 0, state_size: int = 0
) -> Batch:
    """Random observations, actions, rewards and ends; the step after an end is not valid.

    `state_size`: of a recurrent policy, whose states are random too.
    """
    rng = np.random.default_rng(seed)
    shape = (unroll_length, num_columns)
    if env.action.kind != "continuous":
        choices = np.reshape(env.action.choices_per_part, env.action.shape)
        action = rng.integers(0, choices, (*shape, *env.action.shape))
    else:
        action = rng.normal(size=(*shape, env.action.size)).astype(np.float32)
    ends = rng.random(shape) < 0.25
    truncated = ends & (rng.random(shape) < 0.5)
    valid = np.ones(shape, bool)
    valid[1:] = ~ends[:-1]
    obs_shape = (unroll_length + 1, num_columns, *env.observation.shape)
    fields = {
        "obs": rng.normal(size=obs_shape).astype(np.float32),
        "action": action,
        "reward": rng.normal(size=shape).astype(np.float32) * valid,
        "terminated": ends & ~truncated & valid,
        "truncated": truncated & valid,
        "valid": valid,
        "behavior_log_prob": rng.normal(-1.1, 0.3, size=shape).astype(np.float32),
    }
    if state_size:
        fields["initial_state"] = rng.normal(size=(1, num_columns, state_size)).astype(np.float32)
    return make_batch(fields, update)


def make_batch(fields: dict[str, np.ndarray], update: int = 0) -> Batch:
    num_columns = fields["reward"].shape[1]
    tensors = {name: torch.from_numpy(values) for name, values in fields.items()}
    return Batch(fields=tensors, column_offset=0, total_columns=num_columns, update=update)


def split(batch: Batch, sizes: Sequence[int]) -> list[Batch]:
    """The same columns over len(sizes) learners."""
    assert sum(sizes) == batch.total_columns
    offsets = np.cumsum([0, *sizes])
    return [
        Batch(
            fields={name: values[:, start:stop] for name, values in batch.fields.items()},
            column_offset=int(start),
            total_columns=batch.total_columns,
            update=batch.update,
        )
        for start, stop in itertools.pairwise(offsets)
    ]


class ThreadReducer:
    """Sums over threads in rank order, so that all get the same bits; a mismatch is a failure, not a hang."""

    def __init__(self, world: Learners, rank: int) -> None:
        self._world = world
        self._rank = rank
        self._memory = np.zeros(0, np.float32)
        self._result = self._memory
        self.extra_sums = np.zeros(0)
        self.started: set[int] = set()
        self.calls = 0

    def open_gradient(self, size: int, exact: Sequence[range] = ()) -> np.ndarray:
        if self._memory.size != size:
            self._memory = np.zeros(size, np.float32)
        return self._memory

    @property
    def buckets(self) -> tuple[range, ...]:
        """The upper half first."""
        middle, end = self._memory.size // 2, self._memory.size
        return (range(middle, end), range(middle))

    def start(self, bucket: int) -> None:
        """Sum what is there now: what is added later is lost."""
        assert bucket not in self.started
        self.started.add(bucket)
        part = self.buckets[bucket]
        self._result = self._memory.copy() if len(self.started) == 1 else self._result
        self._result[part.start : part.stop] = self._memory[part.start : part.stop]

    def poll(self) -> None:
        pass

    def finish(self, extras: Sequence[float] = ()) -> np.ndarray:
        for bucket in {0, 1} - self.started:
            self.start(bucket)
        self.started.clear()
        both = torch.cat((torch.from_numpy(self._result).double(), torch.tensor(extras, dtype=torch.float64)))
        self.sum_(both)
        self._result = both[: self._memory.size].float().numpy()
        self.extra_sums = both[self._memory.size :].numpy()
        self._result.flags.writeable = False
        return self._result

    def square_sum(self) -> float:
        return float(np.sum(self._result.astype(np.float64) ** 2))

    def sum_(self, vector: Tensor) -> None:
        assert vector.ndim == 1
        assert vector.is_contiguous()
        assert vector.dtype in (torch.float32, torch.float64)
        self.calls += 1
        world = self._world
        world.slots[self._rank] = vector.clone()
        world.barrier.wait(TIMEOUT_S)
        assert len({(len(slot), slot.dtype) for slot in world.slots}) == 1
        total = world.slots[0].clone()
        for slot in world.slots[1:]:
            total += slot
        world.barrier.wait(TIMEOUT_S)
        vector.copy_(total)


class Learners:
    """Learners as threads of one process."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.slots: list[Tensor] = [torch.zeros(0)] * size
        self.reducers = [ThreadReducer(self, rank) for rank in range(size)]

    def run(self, work: Callable[[int, ThreadReducer], Any]) -> list[Any]:
        """work(rank, reducer) on every learner. Raises AssertionError where their reductions do not match."""
        results: list[Any] = [None] * len(self.slots)
        errors: list[BaseException] = []

        def body(rank: int) -> None:
            try:
                results[rank] = work(rank, self.reducers[rank])
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                errors.append(error)
            # A learner that is done leaves none of the others waiting for it.
            if self.barrier.n_waiting or errors:
                self.barrier.abort()

        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        calls = [reducer.calls for reducer in self.reducers]
        assert len(set(calls)) == 1, f"reducer calls per learner: {calls}"
        assert not self.barrier.broken
        return results


def train(
    algorithms: Sequence[ActorCriticAlgorithm], shares: Sequence[Sequence[Batch]]
) -> list[list[UpdateResult]]:
    """Every learner's results of the updates in `shares`, [update][learner] -> share."""

    def work(rank: int, reducer: ThreadReducer) -> list[UpdateResult]:
        return [algorithms[rank].update(batches[rank], reducer, 0.5) for batches in shares]

    return Learners(len(algorithms)).run(work)


def acted_batch(algorithm: ActorCriticAlgorithm, env: EnvSpec, unroll_length: int, num_columns: int) -> Batch:
    """A random batch whose actions are the algorithm's own, under the parameters it has."""
    batch = random_batch(env, unroll_length, num_columns, seed=2)
    rng = np.random.default_rng(0)
    for t in range(unroll_length):
        acted = algorithm.act(batch.fields["obs"][t].numpy(), rng)
        batch.fields["action"][t] = torch.from_numpy(acted["action"])
        batch.fields["behavior_log_prob"][t] = torch.from_numpy(acted["behavior_log_prob"])
    return batch
