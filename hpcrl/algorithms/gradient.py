"""One gradient step over all learners: flat Adam, and the reduction that comes before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hpcrl.algorithms.base import Reducer, Vector
from hpcrl.functional.statistics import gradient_noise
from hpcrl.models.flat import FlatParameters

BETA1, BETA2 = 0.9, 0.999
NORM_EPSILON = 1e-6
"""Keeps the clip of a zero gradient from dividing by zero."""


class FlatAdam:
    """Adam (Kingma and Ba 2015) for `FlatParameters`; the numbers of torch.optim.Adam up to rounding.

    Written out because constructing torch.optim.Adam imports torch's compiler: a second of start-up on every
    rank, actors included, and for small networks most of the time of a step.

    Attributes:
        exp_avg, exp_avg_sq: float32 [gradient_size], the moments.
    """

    def __init__(
        self, parameters: FlatParameters, epsilon: float, parts: Sequence[range] | None = None
    ) -> None:
        """`parts`: each is stepped with a learning rate, and as often, as `step` says; None: all is one part."""
        self._parameters = parameters
        self._epsilon = epsilon
        self.exp_avg = torch.zeros_like(parameters.trainable)
        self.exp_avg_sq = torch.zeros_like(parameters.trainable)
        self._parts = parts or [range(parameters.gradient_size)]
        self._counts = [0] * len(self._parts)
        self._own(range(parameters.size))
        self._stepped: Callable[[], None] = lambda: None

    def _own(self, own: range) -> None:
        """Step only these elements, as far as they have a gradient."""
        stops = [max(part.start, min(part.stop, own.stop)) for part in self._parts]
        starts = [
            min(stop, max(part.start, own.start)) for part, stop in zip(self._parts, stops, strict=True)
        ]
        self._slices = [slice(*ends) for ends in zip(starts, stops, strict=True)]
        device = self._parameters.vector.device
        self._scratch = [torch.empty(part.stop - part.start, device=device) for part in self._slices]

    @property
    def steps(self) -> int:
        """Gradient steps taken: of the part that took most."""
        return max(self._counts)

    def step(
        self, learning_rate: float | Sequence[float | None], gradient: Vector | Tensor, scale: float
    ) -> None:
        """Move the parameters against `gradient` [gradient_size], where they lie, times `scale`, in place.

        learning_rate: or one for each part; a part with None stays as it is, and so do its moments and its count of
            steps, by which Adam corrects their bias.
        """
        rates = learning_rate if isinstance(learning_rate, Sequence) else (learning_rate,)
        for index, rate in enumerate(rates):
            if rate is not None:
                self._step_part(index, rate, gradient, scale)
        self._stepped()

    def _step_part(self, index: int, rate: float, gradient: Vector | Tensor, scale: float) -> None:
        self._counts[index] += 1
        steps, part, scratch = self._counts[index], self._slices[index], self._scratch[index]
        exp_avg, exp_avg_sq = self.exp_avg[part], self.exp_avg_sq[part]
        if isinstance(gradient, Tensor):
            torch.mul(gradient[part], scale, out=scratch)
        else:  # may be read-only, which torch does not know
            np.multiply(gradient[part], np.float32(scale), out=scratch.numpy())
        exp_avg.lerp_(scratch, 1 - BETA1)
        exp_avg_sq.mul_(BETA2).addcmul_(scratch, scratch, value=1 - BETA2)
        denominator = torch.sqrt(exp_avg_sq, out=scratch)
        denominator.div_(math.sqrt(1 - BETA2**steps)).add_(self._epsilon)
        self._parameters.vector[part].addcdiv_(exp_avg, denominator, value=-rate / (1 - BETA1**steps))

    def share(self, memories: Sequence[Tensor], own: range, stepped: Callable[[], None]) -> None:
        """Step only the elements `own`; other processes step the others, in the same memory.

        memories: like `vectors`, filled with their values already.
        own: of the parameters' vector; what has no gradient stays as it is.
        stepped: waits until all have stepped.
        """
        vector, self.exp_avg, self.exp_avg_sq = memories
        self._parameters.use_vector(vector)
        self._own(own)
        self._stepped = stepped

    def move(self, device: torch.device) -> None:
        """Keep parameters and moments on `device` from here on."""
        self._parameters.move(device)
        moments = [moment.to(device) for moment in (self.exp_avg, self.exp_avg_sq)]
        self.share([self._parameters.vector, *moments], range(self._parameters.size), lambda: None)

    def release(self) -> None:
        """Move everything into memory of its own again."""
        vectors = [vector.clone() for vector in self.vectors()]
        self.share(vectors, range(self._parameters.size), lambda: None)

    def vectors(self) -> list[Tensor]:
        """Parameters, float32 [size], and both moments, [gradient_size]; the memory itself."""
        return [self._parameters.vector, self.exp_avg, self.exp_avg_sq]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Copy the parameters and what `step` carries from one call to the next."""
        return {
            "parameters": self._parameters.vector.numpy(force=True).copy(),
            "adam_exp_avg": self.exp_avg.numpy(force=True).copy(),
            "adam_exp_avg_sq": self.exp_avg_sq.numpy(force=True).copy(),
            "adam_steps": np.array(self._counts if len(self._counts) > 1 else self.steps, np.int64),
        }

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state`, which `check_state` has checked, bit for bit."""
        self._parameters.load(np.asarray(state["parameters"]))
        for moment, name in ((self.exp_avg, "adam_exp_avg"), (self.exp_avg_sq, "adam_exp_avg_sq")):
            moment.copy_(torch.tensor(np.ascontiguousarray(state[name])))
        self._counts = np.atleast_1d(state["adam_steps"]).tolist()


def check_state(current: Mapping[str, npt.NDArray[Any]], given: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raise ValueError naming an entry of the `current` state that `given` lacks, or has in another shape or dtype."""
    for name, own in current.items():
        if name not in given:
            raise ValueError(f"state has no entry {name!r}; it has {', '.join(sorted(given)) or 'none'}")
        values = np.asarray(given[name])
        if values.shape != own.shape or values.dtype != own.dtype:
            raise ValueError(
                f"state entry {name!r} has shape {values.shape} and dtype {values.dtype}; this network has "
                f"{own.shape} and {own.dtype}: was it saved with another model or env section?"
            )


@dataclass(frozen=True, slots=True)
class ReducedGradient:
    """What `reduce_gradient` found. Equal on all learners."""

    vector: Vector | Tensor
    """float32 [size], sum over all samples of all learners; read-only, valid until the next backward pass"""
    scale: float
    """what makes the vector the mean over the samples, with its norm clipped"""
    samples: float
    """valid env_steps behind the gradient, over all learners; 0: there is nothing to step along"""
    norm: float
    """L2 norm of the averaged gradient, not yet clipped"""
    extra: float
    """sum of one number that each learner gave; not finite where a loss was not"""
    square: float = math.nan
    """estimate of the squared norm of the true gradient; NaN where only one batch size was seen"""
    variance: float = math.nan
    """estimate of the trace of the covariance of one env_step's gradient; NaN as `square`"""

    @property
    def finite(self) -> bool:
        """False when any learner gave a NaN or an infinity: the step must not be taken."""
        return math.isfinite(self.norm) and math.isfinite(self.extra)


def open_gradient(parameters: FlatParameters, reducer: Reducer) -> None:
    """Let the gradient lie where the reducer sums it, and set it to zero. Collective the first time, then local."""
    memory = torch.as_tensor(reducer.open_gradient(parameters.gradient_size, parameters.vectors_only))
    if parameters.gradient.data_ptr() != memory.data_ptr():
        parameters.use_gradient(memory)
        parameters.on_gradient(None)
    parameters.zero_gradient()


@contextmanager
def last_backward(parameters: FlatParameters, reducer: Reducer) -> Iterator[None]:
    """Around the backward pass that completes the gradient: what it is done with is summed while it goes on."""
    if len(reducer.buckets) == 1:
        yield
        return
    left = [0] * len(reducer.buckets)
    touched: list[list[int]] = []
    for own in parameters.ranges:
        touched.append(
            [i for i, part in enumerate(reducer.buckets) if own.start < part.stop and part.start < own.stop]
        )
        for bucket in touched[-1]:
            left[bucket] += 1

    def accumulated(index: int) -> None:
        for bucket in touched[index]:
            left[bucket] -= 1
            if left[bucket] == 0:
                reducer.start(bucket)
        reducer.poll()

    parameters.on_gradient(accumulated)
    try:
        yield
    finally:
        parameters.on_gradient(None)


def reduce_gradient(
    reducer: Reducer,
    samples: int,
    extra: float,
    max_norm: float,
    *,
    small: SmallBatch | None = None,
    loss_scale: float = 1.0,
) -> ReducedGradient:
    """Sum the gradient that lies in the reducer's memory; mean and clipping as one factor.

    Collective over the learners. The gradient on entry is `loss_scale` times that of a sum over `samples` valid
    env_steps of this learner; averaging and clipping come after the reduction, so the result does not depend on how the
    samples are divided. `small`: the gradient of some of this learner's samples, for the noise scale.
    """
    seen = (1.0, small.square, 1 / small.samples) if small else (0.0, 0.0, 0.0)
    vector = reducer.finish((samples, extra, *seen))
    total, extra_sum, parts, squares, inverses = reducer.extra_sums.tolist()
    count = max(total, 1.0)
    # In float64 the squares of finite float32 numbers cannot overflow: not finite means an entry is not.
    norm = math.sqrt(reducer.square_sum()) / count / loss_scale
    scale = 1 / count / loss_scale
    if norm > max_norm:
        scale *= max_norm / (norm + NORM_EPSILON)
    square, variance = gradient_noise(parts, squares, inverses, norm, count)
    return ReducedGradient(vector, scale, total, norm, extra_sum, square, variance)


@dataclass(frozen=True, slots=True)
class SmallBatch:
    """The gradient of a part of a gradient step's samples."""

    square: float
    """squared L2 norm of its mean"""
    samples: int


class GradientStep:
    """The gradient of one step: backward passes over this learner's samples, in parts, then the sum over all learners.

    Each learner makes as many, with as many or as few passes as its share needs. What the passes do is local.
    """

    def __init__(
        self, parameters: FlatParameters, reducer: Reducer, *, alone: bool, loss_scale: float = 1.0
    ) -> None:
        """Collective the first time, then local. `alone`: this learner has the samples of all."""
        open_gradient(parameters, reducer)
        self._parameters, self._reducer = parameters, reducer
        self._alone, self._loss_scale = alone, loss_scale
        self._samples = 0
        self.extra = 0.0
        """sum of the extra numbers so far"""
        self._small: SmallBatch | None = None

    def add(self, loss: Tensor, samples: int, extra: float, *, last: bool) -> None:
        """Add the gradient of `loss`, summed over `samples` valid env_steps; the `last` part completes it.

        `extra`: a number of this part, to be summed.
        """
        scaled = loss if self._loss_scale == 1 else loss * self._loss_scale
        with last_backward(self._parameters, self._reducer) if last else nullcontext():
            scaled.backward()  # type: ignore[no-untyped-call]
        if samples and not self._samples and not (last and self._alone):
            gradient = self._parameters.gradient
            square = float(torch.dot(gradient, gradient)) / (samples * self._loss_scale) ** 2
            self._small = SmallBatch(square, samples)
        self._samples += samples
        self.extra += extra

    def add_gradient(self, gradient: Tensor, samples: int, extra: float) -> None:
        """Add a gradient, float32 [size], that was computed elsewhere for the sum over `samples` valid env_steps."""
        self._parameters.gradient += gradient
        self._samples += samples
        self.extra += extra

    def reduce(self, max_norm: float) -> ReducedGradient:
        """As `reduce_gradient`. Collective over the learners."""
        return reduce_gradient(
            self._reducer,
            self._samples,
            self.extra,
            max_norm,
            small=self._small,
            loss_scale=self._loss_scale,
        )
