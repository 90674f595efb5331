"""Recurrent cells: a GRU and an LSTM between torso and heads, with the state of each environment as one row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpcrl.config import ModelConfig

KEEP_BIAS = 1.0
"""Of the gate that keeps the state (Jozefowicz et al. 2015): what is seen now still matters some env_steps later."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a recurrent network starts from in N sequences of observations, and where it forgets."""

    state: Tensor
    """float32 [N, size], before the first observation"""
    begins: Tensor
    """bool [L, N], True where the observation is the first of an episode: what comes before it is forgotten.

    Of more steps than there are observations the first ones count."""

    def columns(self, columns: slice | Tensor) -> Memory:
        """That of some of the sequences: a slice, or int64 [n]."""
        return Memory(self.state[columns], self.begins[:, columns])

    def episodes(self, length: int) -> tuple[Tensor, list[int], Tensor]:
        """The first `length` steps cut into pieces of one episode each, the longest first, to be unrolled side by side.

        Returns:
            rows: int64 [length * N], numbers of the time-major rows: the first row of every piece, then the second of
                those that have one, and so on, always in the order of the pieces.
            sizes: how many pieces have a first row, a second, ...; in total length * N.
            state: float32 [pieces, size], what each piece starts from: 0, but for those of the first step.
        """
        num, device = len(self.state), self.state.device
        time = torch.arange(length, device=device).unsqueeze(1).expand(length, num)
        begins = self.begins[:length] | (time == 0)
        start = time.masked_fill(~begins, 0).cummax(0).values
        ends = torch.cat((begins[1:], begins.new_ones(min(length, 1), num)))
        end = time.masked_fill(~ends, length).flip(0).cummin(0).values.flip(0)
        position = time - start
        # by position, then longest first, then by the first row of the piece
        order = ((position + 1) * (length + 1) - (end - start)) * (length * num) + start * num
        rows = (order + torch.arange(num, device=device)).flatten().argsort()
        sizes = position.flatten().bincount().tolist()
        first = rows[: sizes[0] if sizes else 0]
        kept = (first < num) & ~self.begins.flatten()[first]
        return rows, sizes, self.state[first % max(1, num)].masked_fill(~kept.unsqueeze(1), 0.0)

    def part(self, numbers: range) -> Memory:
        """That of a cell whose state is these numbers of the whole."""
        return Memory(self.state[:, numbers.start : numbers.stop], self.begins)


class Recurrent(nn.Module):
    """A cell whose state is one row of numbers per environment, all 0 where an episode begins.

    Parameters lie and mean as in torch.nn.GRUCell and LSTMCell. Each gate's weights are orthogonal with gain 1; biases
    are 0, but for KEEP_BIAS.

    Attributes:
        size: numbers that the cell puts out per row.
        state_size: numbers that it remembers.
    """

    num_gates: ClassVar[int]
    keep_gate: ClassVar[int]
    """Index of the gate that keeps the state where it is open."""
    num_parts: ClassVar[int]
    """Parts of a state, of `size` numbers each; the first is what the cell puts out."""

    def __init__(self, width: int, size: int, generator: torch.Generator) -> None:
        """`width`: numbers that come in. Equal states of `generator` give equal parameters."""
        super().__init__()
        self.size, self.state_size = size, self.num_parts * size
        self.weight_ih = self._weights(width, generator)
        self.weight_hh = self._weights(size, generator)
        self.bias_ih = nn.Parameter(torch.zeros(self.num_gates * size))
        self.bias_hh = nn.Parameter(torch.zeros(self.num_gates * size))
        with torch.no_grad():
            self.bias_ih[self.keep_gate * size : (self.keep_gate + 1) * size] = KEEP_BIAS

    @abstractmethod
    def advance(self, inputs: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The state after one env_step. `inputs`: what came in, through weight_ih and bias_ih, [N, gates * size]."""

    def step(self, features: Tensor, state: Tensor) -> Tensor:
        """One env_step: float32 [N, width] and the state [N, state_size] before it give the state after it.

        Its first `size` columns are what the cell puts out.
        """
        inputs = torch.addmm(self.bias_ih, features, self.weight_ih.t())
        return torch.cat(self.advance(inputs, state.chunk(self.num_parts, 1)), 1)

    def unroll(self, features: Tensor, memory: Memory) -> Tensor:
        """L env_steps of N sequences, one after the other; the gradient flows through all of them.

        Time-major: float32 [L * N, width] comes in, [L * N, size] goes out. All episodes go on side by side, so that
        there are as many steps as the longest one has.
        """
        num = len(memory.state)
        if num == 0:
            return features.new_zeros(0, self.size)
        rows, sizes, state = memory.episodes(len(features) // num)
        inputs = functional.linear(features, self.weight_ih, self.bias_ih).index_select(0, rows)
        parts: tuple[Tensor, ...] = state.chunk(self.num_parts, 1)
        outputs = []
        for now in torch.split(inputs, sizes):
            if len(now) < len(parts[0]):
                parts = tuple(part[: len(now)] for part in parts)
            parts = self.advance(now, parts)
            outputs.append(parts[0])
        return torch.cat(outputs).index_select(0, rows.argsort())

    def after(self, features: Tensor, memory: Memory) -> Tensor:
        """The state [N, state_size] after the L env_steps of `unroll`, of which nothing else is kept."""
        num, state = len(memory.state), memory.state
        if num == 0:
            return state
        inputs = functional.linear(features, self.weight_ih, self.bias_ih).view(-1, num, len(self.bias_ih))
        for now, begins in zip(inputs, memory.begins, strict=False):
            state = state.masked_fill(begins.unsqueeze(1), 0.0)
            state = torch.cat(self.advance(now, state.chunk(self.num_parts, 1)), 1)
        return state

    def _weights(self, width: int, generator: torch.Generator) -> nn.Parameter:
        weights = torch.empty(self.num_gates, self.size, width)
        for gate in weights:
            nn.init.orthogonal_(gate, generator=generator)
        return nn.Parameter(weights.flatten(0, 1))


class Gru(Recurrent):
    """The gated recurrent unit (Cho et al. 2014) in the form of torch.nn.GRU: reset, update and new."""

    num_gates = 3
    keep_gate = 1
    num_parts = 1

    def advance(self, inputs: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """h' = (1 - z) n + z h with n = tanh(x_n + r h_n), where h_n is the state through weight_hh and bias_hh."""
        (hidden,) = state
        both = 2 * self.size
        from_state = torch.addmm(self.bias_hh, hidden, self.weight_hh.t())
        reset, update = torch.sigmoid(inputs[:, :both] + from_state[:, :both]).chunk(2, 1)
        candidate = torch.tanh(torch.addcmul(inputs[:, both:], reset, from_state[:, both:]))
        return (torch.lerp(candidate, hidden, update),)


class Lstm(Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; forget gate of Gers et al. 2000), as torch.nn.LSTM."""

    num_gates = 4
    keep_gate = 1
    num_parts = 2

    def advance(self, inputs: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """c' = f c + i g and h' = o tanh(c')."""
        hidden, cell = state
        gates = inputs + torch.addmm(self.bias_hh, hidden, self.weight_hh.t())
        enter, forget, candidate, leave = gates.chunk(4, 1)
        cell = torch.addcmul(torch.sigmoid(forget) * cell, torch.sigmoid(enter), torch.tanh(candidate))
        return torch.sigmoid(leave) * torch.tanh(cell), cell


CELLS: dict[str, type[Recurrent]] = {"gru": Gru, "lstm": Lstm}
"""By the values of model.recurrent."""


def episode_begins(valid: Tensor) -> Tensor:
    """Bool [T+1, C], True where the observation is the first of an episode: after a step that is not `valid` [T, C].

    As in acting, nothing is forgotten before the first one: the state at the start of a trajectory is the actor's.
    """
    return torch.cat((torch.zeros_like(valid[:1]), ~valid))


def make_cell(width: int, model: ModelConfig, generator: torch.Generator) -> Recurrent | None:
    """What stands behind a torso of this width."""
    if model.recurrent == "none":
        return None
    return CELLS[model.recurrent](width, model.recurrent_size, generator)


def remembered(features: Tensor, cell: Recurrent | None, memory: Memory | None, part: range) -> Tensor:
    """What the heads see of the features [N, width]: these, or what the cell makes of them."""
    if cell is None:
        return features
    if memory is None:
        raise ValueError(
            "a recurrent network needs its memory: where each sequence of observations starts from"
        )
    return cell.unroll(features, memory.part(part))
