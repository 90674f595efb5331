"""A disk that refuses: what it said, for how long, and whether that is too long."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Patience:
    """How long something may fail before that is the end."""

    limit_s: float
    since: float | None = field(default=None, init=False)
    """When it began to fail (perf_counter); None: it is well."""

    def bear(self) -> bool:
        """It has failed; whether that is new."""
        begins = self.since is None
        if begins:
            self.since = time.perf_counter()
        return begins

    def well(self) -> float | None:
        """It has not failed; seconds since it began to, or None where it had not."""
        lasted_s = None if self.since is None else self.lasted_s
        self.since = None
        return lasted_s

    @property
    def lasted_s(self) -> float:
        """Seconds since it began to fail; 0 while it is well."""
        return 0.0 if self.since is None else time.perf_counter() - self.since

    @property
    def over(self) -> bool:
        """It fails, and has done so for too long."""
        return self.since is not None and self.lasted_s >= self.limit_s


def reason(error: Exception) -> str:
    """What the system said, out of what HDF5 makes of it. Pure."""
    said = re.search(r"error message = '([^']*)'", str(error))
    return said[1] if said else " ".join(str(error).split())
