"""The schema as a page for people."""

from __future__ import annotations

from hpcrl.storage.schema import SCHEMA_VERSION, TABLES

_INTRODUCTION = f"""\
# Reading a run

Schema version {SCHEMA_VERSION}. This page is printed by `hpcrl schema`; change the table in
`hpcrl/storage/schema.py`, not here.

`python analysis/curves.py RUN... --out curves.png` draws return against env_steps and wall time; of several runs, or a
folder of them, by the settings in which they differ (`analysis/sweeps.py`). The scripts here need
numpy, h5py, pandas and matplotlib; neither MPI nor torch nor a network. In your own code:

```python
from load import load_run  # analysis/load.py

tables = load_run("runs/cartpole-impala-0-001")  # name -> pandas.DataFrame, all attempts joined
tables["updates"].plot("env_steps", "lag_mean")
```

`RUN/run.h5` links the files of the attempts, `RUN/attempts/001.h5` and so on. A run that is still going on, or whose
writer was killed, opens with `h5py.File(path, "r", libver="latest", swmr=True)`; the dataset `committed_rows` says how
many rows of each table are complete. Other programs open such a file after `hpcrl salvage RUN`; `hpcrl merge RUN OUT`
joins all attempts in one plain file, and `hpcrl verify RUN` tells whether anything was changed. Every column's unit and
meaning are also attributes of its dataset.
"""


def markdown() -> str:
    """Every table and column. Pure."""
    parts = [_INTRODUCTION]
    for table in TABLES.values():
        parts.append(
            f"\n## {table.name}\n\n{table.meaning}\n\n| column | type | unit | over ranks | meaning |\n"
        )
        parts.append("| --- | --- | --- | --- | --- |\n")
        parts += [
            f"| `{column.name}` | {column.dtype} | {column.unit} | {column.merge} | {column.meaning} |\n"
            for column in table.columns
        ]
    return "".join(parts)
