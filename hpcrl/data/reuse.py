"""When a batch is trained on, where each is trained on several times: a circular buffer as pure bookkeeping.

Of `batches` places, update u trains on the one at u modulo `batches`. A place gets a new batch once it has been trained
on `uses` times (Luo et al. 2020, section 3.2). So a batch that is new at update u is trained on again at u + batches,
and for the last time at u + (uses - 1) * batches: that much older the data become than when they were new.

With one use, every update has a batch of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.config import RunConfig


@dataclass(frozen=True, slots=True)
class Reuse:
    """The same on every rank."""

    batches: int = 1
    uses: int = 1
    first: int = 0
    """The update at which this attempt begins, with an empty buffer."""

    @property
    def first_batch(self) -> int:
        """Number of this attempt's first batch: of a run that began here after whole rounds, those it has had."""
        return self.first // self.uses

    @property
    def round(self) -> int:
        """Updates from an empty buffer to the next time that nothing in it is to be used again."""
        return self.batches * self.uses

    def place(self, update: int) -> int:
        """Where the batch of `update` lies in the buffer."""
        return (update - self.first) % self.batches

    def use(self, update: int) -> int:
        """How often the batch of `update` has been trained on, this update included: 1 where it is new."""
        return (update - self.first) % self.round // self.batches + 1

    def is_new(self, update: int) -> bool:
        """Whether `update` takes a new batch."""
        return self.use(update) == 1

    def batches_before(self, update: int) -> int:
        """Number of the first batch that is new at `update` or later; the numbers below were new before."""
        rounds, rest = divmod(update - self.first, self.round)
        return self.first_batch + rounds * self.batches + min(rest, self.batches)

    def first_use(self, batch: int) -> int:
        """The update at which a batch is new."""
        rounds, rest = divmod(batch - self.first_batch, self.batches)
        return self.first + rounds * self.round + rest

    def empty_after(self, update: int, ahead: int) -> int:
        """The first update, from `update` on, at which the buffer is used up and `ahead` more batches were new."""
        rounds = -(-(self.batches_before(update) + ahead - self.first_batch) // self.batches)
        return self.first + rounds * self.round


ONCE = Reuse()
"""Every update has a batch of its own."""


def reuse_of(config: RunConfig, first: int) -> Reuse:
    """The schedule of an attempt that begins at update `first`."""
    batches, uses = config.algorithm.buffer
    return Reuse(batches, uses, first)
