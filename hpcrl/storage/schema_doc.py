"""The schema as a page for people."""

from __future__ import annotations

from hpcrl.config.hops import HOPS
from hpcrl.storage.schema import SCHEMA_VERSION, TABLES

_INTRODUCTION = f"""\
# Reading a run

Schema version {SCHEMA_VERSION}. This page is printed by `hpcrl schema`; change the table in
`hpcrl/storage/schema.py`, not here.

The scripts here need one run directory, or a folder of them, and neither MPI nor torch nor a network:

```
pip install numpy h5py pandas matplotlib pydantic rich && pip install --no-deps .      # on a laptop
python analysis/report.py RUN... --out report.html
```

| script | shows | as a function |
| --- | --- | --- |
| `report.py` | all of the following as one web page that needs nothing else | `report(runs)` |
| `curves.py` | return against env_steps and wall time | `curves(runs)` |
| `curves.py --seeds` | the same over seeds, with intervals | `seed_bands(runs)` |
| `aggregates.py` | interquartile mean and others, with intervals | `aggregates(run_scores(runs))` |
| `compare.py` | whether settings differ, and how sure that is | `compare(run_scores(runs))` |
| `lag.py` | lag, distance from the acting policy, return against lag | `lag_by_update(runs)`, `lag_by_run(...)` |
| `throughput.py` | env_steps/s over time, scaling with ranks | `throughput(runs)`, `intervals(runs)` |
| `time_shares.py` | time by role and hop, traffic by kind of message | `time_shares(runs)`, `traffic(runs)` |
| `cost.py` | node-hours, env_steps per node-hour, lost work, cost of a return | `cost(runs)` |
| `lag_study.py` | the runs of `jobs/lag_study.py` | `study(runs)` |

Each writes a picture (`--out`, .png, .svg or .pdf) and a table (`--csv`); `--help` says what is in it. Runs are grouped
by the settings in which they differ (`sweeps.py`). What cannot be used is said in one line, with exit code 2. In your
own code, with this folder on the path, functions give tables of pandas:

```python
from load import load_run

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
        if table.name == "timers":
            parts += _hops()
    return "".join(parts)


def _hops() -> list[str]:
    """What can stand in column `hop`."""
    kinds = (
        "`compute`; `communicate`: moving data, or copying it to where it leaves from; `wait`: for another rank; "
        "`rest`: the run's own upkeep; `span`: how long something lasted while the rank did other things, no part of "
        "its time"
    )
    return [
        f"\nHops, in the order of a transition's way. Kinds: {kinds}.\n\n",
        "| hop | kind | lies within | meaning |\n| --- | --- | --- | --- |\n",
        *(
            f"| `{name}` | {hop.kind} | {', '.join(f'`{outer}`' for outer in hop.within)} | {hop.meaning} |\n"
            for name, hop in HOPS.items()
        ),
    ]
