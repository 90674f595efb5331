"""The cells of the fault table, and few of them in which everything occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import combinations, product

KINDS = {
    "exception": "failed: RuntimeError: put here by the fault table",
    "sys.exit(3)": "failed: SystemExit: 3",
    "os._exit(9)": "ended without a word, exit status 9",
    "SIGKILL": "was killed by SIGKILL",
    "loop": "has made no progress for 2 s (faults.stall_timeout_s)",
}
"""What happens to a rank, and the cause that its line must name."""
RANK_OF = {"replay": 0, "learner": 1, "actor": 2}
PHASES = ("start", "middle", "checkpoint")
LAUNCHERS = ("mpiexec", "srun", "submitit")


@dataclass(frozen=True)
class Cell:
    """One run of the table."""

    kind: str
    role: str
    phase: str
    launcher: str

    def __str__(self) -> str:
        return f"{self.launcher}-{self.role}-{self.phase}-{self.kind}"


CELLS = tuple(Cell(*values) for values in product(KINDS, RANK_OF, PHASES, LAUNCHERS))


def covering(cells: Sequence[Cell], times: int) -> list[Cell]:
    """Few of `cells` in which every kind, role, phase and launcher occurs at least `times` times. Pure.

    One after another the cell with most of what is still missing; among equals the one with most new pairs.
    """
    chosen: list[Cell] = []
    wanted = set(_values(cells[0])).union(*map(_values, cells))
    while True:
        seen = Counter(value for cell in chosen for value in _values(cell))
        missing = {value for value in wanted if seen[value] < times}
        if not missing:
            return chosen
        pairs = {pair for cell in chosen for pair in combinations(_values(cell), 2)}

        def gain(cell: Cell, missing: set[object] = missing, pairs: set[object] = pairs) -> tuple[int, int]:
            own = combinations(_values(cell), 2)
            return len(missing.intersection(_values(cell))), sum(pair not in pairs for pair in own)

        chosen.append(max((cell for cell in cells if cell not in chosen), key=gain))


def _values(cell: Cell) -> list[object]:
    """(dimension, value) of each dimension."""
    return list(enumerate(astuple(cell)))
