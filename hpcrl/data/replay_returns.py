"""n-step transitions, read from the rings of a replay memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.data.replay_rings import Rings

Array = npt.NDArray[Any]
Slots = npt.NDArray[np.int64]


class Returns:
    """What becomes of rewards: clipped, then scaled, then summed with discounts over n env_steps."""

    def __init__(
        self, steps_ahead: int, gamma: float, reward_scale: float, reward_clip: float | None
    ) -> None:
        self.discounts = gamma ** np.arange(steps_ahead + 1, dtype=np.float64)
        """gamma^0 to gamma^n"""
        self.scaling = float(reward_scale), np.inf if reward_clip is None else float(reward_clip)
        """Factor, and what rewards are clipped to before, from minus to plus this."""

    def scale(self, rewards: Array) -> None:
        """Clip and scale float32 rewards in place."""
        scale, clip = self.scaling
        np.clip(rewards, -clip, clip, out=rewards)
        rewards *= np.float32(scale)


def gather_transitions(rings: Rings, slots: Slots, returns: Returns, fields: dict[str, Array]) -> None:
    """Write the transitions that begin at slots [count] to `fields` of transition_spec [1, count, ...], but weight."""
    from hpcrl.data import replay_kernels

    after, newest = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
    count = replay_kernels.look_ahead(
        slots,
        rings.books,
        rings.rows["reward"],
        returns.scaling,
        returns.discounts,
        fields["reward"][0],
        fields["discount"][0],
        after,
        newest,
    )
    rings.read_observations(slots, fields["obs"][0])
    rings.read_observations(after, fields["next_obs"][0])
    rings.read_newest(slots, newest[:count], fields["next_obs"][0])
    for name in ("action", "parameter_version"):
        fields[name][0] = rings.rows[name][slots]
    fields["valid"][0] = True
