"""Configuration of the algorithms that learn from a replay memory."""

from __future__ import annotations

from pydantic import Field

from hpcrl.config.algorithms import AlgorithmConfig


class OffPolicyConfig(AlgorithmConfig):
    """What every algorithm has that samples from a replay memory (section `replay`)."""

    unroll_length: int = Field(8, ge=1)
    """env_steps per trajectory and environment slot: what actors send at a time."""
    batch_size: int = Field(256, ge=1)
    """Transitions, or sequences, per update over all learners."""
    max_grad_norm: float = Field(10.0, gt=0)
    """The averaged gradient is scaled down to this L2 norm."""
    target_update_updates: int = Field(1, ge=1)
    """The target network follows the learned one every so many updates."""
    target_tau: float = Field(1.0, gt=0, le=1)
    """How far it goes then: 1 copies the parameters; a small share (0.005), after each update, averages them (Polyak).
    """

    @property
    def uses_replay(self) -> bool:
        """As AlgorithmConfig.uses_replay."""
        return True

    @property
    def steps_ahead(self) -> int:
        """n: env_steps whose rewards count before the value of the observation after them does."""
        return 1

    @property
    def sequence_steps(self) -> int:
        """env_steps of a sampled sequence, a multiple of unroll_length; 0: single transitions are sampled."""
        return 0

    @property
    def gives_priorities(self) -> bool:
        """Actors compute the first priority of what they send; False: new entries have the largest one there is."""
        return False
