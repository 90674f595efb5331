"""Whether the stored models of a run are as they were stored, and were evaluated as its rows say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcrl.storage.models import Model, load_parameters, read_model, read_tags
from hpcrl.storage.runlog import read_table
from hpcrl.storage.schema import Rows


def check_models(folder: Path) -> Iterator[str]:
    """What is wrong in `folder`/models; each sentence names the model. Local."""
    try:
        rows = read_table(folder, "evaluation")
    except (OSError, RuntimeError):  # said elsewhere
        rows = None
    there = set()
    for manifest in sorted((folder / "models").glob("[0-9]*.json")):
        there.add(int(manifest.stem))
        try:
            model = read_model(manifest)
            load_parameters(model)
        except (OSError, ValueError) as error:
            if manifest.exists():  # else a run that goes on has removed it
                yield f"model {int(manifest.stem)}: {' '.join(str(error).split())}"
            continue
        if rows is not None:
            yield from _evaluation(model, rows)
    tags = read_tags(folder)
    named = tags.tags | ({} if tags.current is None else {"current": tags.current})
    for name, version in named.items():
        if version not in there:
            yield f"model {version}: is named {name!r}, but not stored"


def _evaluation(model: Model, rows: Rows) -> Iterator[str]:
    """Its score against the rows of its attempt, where these count."""
    said = model.evaluation
    mine = rows[(rows["attempt"] == model.attempt) & (rows["update"] == model.version)]
    if said is None or not len(mine):
        return
    mean = float(np.mean(mine["episode_return"]))
    if (said.mean, said.episodes) != (mean, len(mine)):
        yield (
            f"model {model.version}: evaluated to {said.mean} over {said.episodes} episodes; the rows in `evaluation` "
            f"say {mean} over {len(mine)}"
        )
