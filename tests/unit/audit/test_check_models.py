"""`hpcrl verify` finds what was changed in the model store, and names it."""

import json

import numpy as np
import pytest

from hpcrl.audit.check_models import check_models
from hpcrl.config import RunConfig
from hpcrl.storage import TABLES, RunDirectory, RunLog
from hpcrl.storage.models import ModelStore, Score, Tags, write_tags


@pytest.fixture
def run(tmp_path):
    values = {"name": "toy", "env": {"id": "x"}, "algorithm": {"name": "ppo"}}
    config = RunConfig.parse(values | {"storage": {"run_dir": str(tmp_path / "run")}})
    with RunDirectory.create(config) as run:
        with RunLog(run.attempt_file, config_json=config.to_json(), provenance={}, attempt=1) as log:
            for update, returns in ((4, [1.0, 3.0]), (8, [5.0, 6.0])):
                log.append(
                    "evaluation",
                    TABLES["evaluation"].rows(2, update=update, episode_return=returns, cut=False),
                )
                score = Score.of(returns, 12345, greedy=True)
                parameters = {"w": np.full(3, update, np.float32)}
                ModelStore(run.path, 9).add(update, parameters, score, env_steps=update, attempt=1)
        run.write_status("finished", exit_code=0)
    write_tags(run.path, Tags({"paper": 4}, 8))
    return run.path


def found(run):
    return list(check_models(run))


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_nothing_is_found_where_nothing_was_changed(run):
    assert found(run) == []


def test_one_bit_of_a_model(run):
    path = run / "models/000000000008.npz"
    content = bytearray(path.read_bytes())
    content[150] ^= 4
    path.write_bytes(content)
    (line,) = found(run)
    assert line.startswith("model 8: ") and "does not match the hash" in line


def test_a_score_that_the_rows_do_not_say(run):
    path = run / "models/000000000004.json"
    score = json.loads(path.read_text())["evaluation"]
    change(path, evaluation=score | {"mean": 2.5})
    (line,) = found(run)
    assert line == ("model 4: evaluated to 2.5 over 2 episodes; the rows in `evaluation` say 2.0 over 2")
    change(path, evaluation=score, attempt=2)  # whose rows do not count any more, or are not here
    assert found(run) == []


def test_manifests_and_tags_without_their_model(run):
    (run / "models/000000000004.json").write_text("{}")
    (run / "models/000000000008.npz").unlink()
    lines = found(run)
    assert [line.split(":")[0] for line in lines] == ["model 4", "model 8"]
    for path in (run / "models").glob("0*"):
        path.unlink()
    assert found(run) == [
        "model 4: is named 'paper', but not stored",
        "model 8: is named 'current', but not stored",
    ]
