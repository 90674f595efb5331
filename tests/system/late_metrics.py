"""An algorithm of a user's that begins to report something when nobody expects it any more."""

from dataclasses import replace

from hpcrl.algorithms.base import Batch, Reducer, UpdateResult
from hpcrl.algorithms.impala import Impala
from hpcrl.config import ImpalaConfig

FIRST = 5
"""The update from which on it does."""
LONG = "größe/" + 30 * "ü"
"""66 bytes; 48 are kept, in whole characters."""


class LateConfig(ImpalaConfig):
    name: str = "tests.system.late_metrics:LateMetrics"


class LateMetrics(Impala):
    Config = LateConfig

    def update(self, batch: Batch, reducer: Reducer, progress: float) -> UpdateResult:
        result = super().update(batch, reducer, progress)
        number = batch.update + 1
        if number < FIRST:
            return result
        return replace(result, metrics=result.metrics | {"surprise": 0.5 * number, LONG: float("nan")})
