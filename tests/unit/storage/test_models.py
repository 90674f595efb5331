"""The model store: what stays, what is found by which name, and that a kill at any point leaves it whole."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcrl.config import ConfigError
from hpcrl.storage import models
from hpcrl.storage.models import (
    ModelStore,
    Score,
    Tags,
    best_model,
    export_model,
    find_model,
    load_parameters,
    read_tags,
    stored_models,
    write_tags,
)


def parameters(version):
    return {"net.weight": np.full((2, 3), version, np.float32), "net.bias": np.arange(3, dtype=np.float32)}


def add(run, version, mean=None, keep=2, attempt=1, values=None):
    score = None if mean is None else Score(mean, 1.0, 4, 7, greedy=True)
    given = parameters(version if values is None else values)
    ModelStore(run, keep).add(version, given, score, env_steps=10 * version, attempt=attempt)


def versions(run):
    return [model.version for model in stored_models(run)]


def files(run):
    return sorted(path.name for path in (run / "models").iterdir())


def test_a_model_comes_back_bit_for_bit(tmp_path):
    add(tmp_path, 5, mean=2.5)
    (model,) = stored_models(tmp_path)
    assert (model.version, model.env_steps, model.attempt) == (5, 50, 1)
    assert model.evaluation == Score(2.5, 1.0, 4, 7, greedy=True)
    loaded = load_parameters(model)
    assert list(loaded) == ["net.weight", "net.bias"]
    assert all(loaded[name].tobytes() == values.tobytes() for name, values in parameters(5).items())
    assert find_model(tmp_path) == model


def test_newest_best_tagged_and_current_ones_stay(tmp_path):
    for version, mean in ((1, 0.0), (2, 9.0), (3, 1.0)):
        add(tmp_path, version, mean)
    assert versions(tmp_path) == [2, 3]  # 2 is the best and among the newest
    write_tags(tmp_path, Tags({"paper": 3}, None))
    for version in (4, 5):
        add(tmp_path, version, 2.0)
    assert versions(tmp_path) == [2, 3, 4, 5]
    write_tags(tmp_path, Tags({}, 4))
    for version in (6, 7):
        add(tmp_path, version, 2.0)
    assert versions(tmp_path) == [2, 4, 6, 7]
    write_tags(tmp_path, Tags({}, None))
    add(tmp_path, 8, 10.0)
    assert versions(tmp_path) == [7, 8]
    assert files(tmp_path) == [
        *(f"{version:012d}.{ending}" for version in (7, 8) for ending in ("json", "npz")),
        "tags.json",
    ]


def test_none_is_stored_where_none_is_to_stay(tmp_path):
    add(tmp_path, 1, 1.0, keep=0)
    assert not (tmp_path / "models").exists()


def test_the_best_is_by_evaluation_and_of_equal_ones_the_newest(tmp_path):
    assert best_model([]) is None
    for version, mean in ((1, None), (2, 3.0), (3, 3.0), (4, -1.0), (5, None)):
        add(tmp_path, version, mean, keep=9)
    assert best_model(stored_models(tmp_path)).version == 3
    assert Score.of([1.0, float("nan")], 0, greedy=True) is None
    assert Score.of([1.0, 3.0], 7, greedy=False) == Score(2.0, 1.0, 2, 7, greedy=False)


def test_names(tmp_path):
    for version, mean in ((11, 5.0), (12, 1.0)):
        add(tmp_path, version, mean)
    write_tags(tmp_path, Tags({"paper": 11}, None))
    found = {
        name: find_model(tmp_path, name).version for name in ("11", "paper", "best", "newest", "current")
    }
    assert found == {"11": 11, "paper": 11, "best": 11, "newest": 12, "current": 12}
    write_tags(tmp_path, replace(read_tags(tmp_path), current=11))
    assert find_model(tmp_path).version == 11 and find_model(tmp_path, "newest").version == 12
    with pytest.raises(
        ConfigError, match=r"no model '10'; there are 11, 12, paper, and newest, best and current"
    ):
        find_model(tmp_path, "10")
    with pytest.raises(ConfigError, match=r"models\.keep"):
        find_model(tmp_path / "other")


def test_a_tag_for_a_model_that_has_just_gone_is_refused_and_not_noted(tmp_path):
    add(tmp_path, 1)
    with pytest.raises(ConfigError, match=r"model 9 of .* is not stored any more"):
        write_tags(tmp_path, Tags({"paper": 9}, None))
    assert read_tags(tmp_path) == Tags({}, None)


def test_later_updates_of_a_lost_attempt_are_forgotten_but_not_what_was_named(tmp_path):
    for version in (3, 6, 7, 8):
        add(tmp_path, version, float(version), keep=9)
    write_tags(tmp_path, Tags({"keep_it": 7}, None))
    ModelStore(tmp_path, 9).forget_after(3)
    assert versions(tmp_path) == [3, 7]
    with pytest.raises(FileExistsError, match="attempt 1 is tagged"):
        add(tmp_path, 7, 1.0, attempt=2, values=70)
    assert stored_models(tmp_path)[1].evaluation.mean == 7.0
    load_parameters(stored_models(tmp_path)[1])
    assert not [name for name in files(tmp_path) if name.endswith(".tmp")]
    write_tags(tmp_path, Tags({}, None))
    add(tmp_path, 7, 1.0, attempt=2, values=70)
    assert load_parameters(find_model(tmp_path, "7"))["net.weight"][0, 0] == 70


def test_an_evaluation_is_not_forgotten_where_the_same_model_is_stored_again(tmp_path):
    add(tmp_path, 4, 3.0)
    add(tmp_path, 4, None, attempt=2)
    (model,) = stored_models(tmp_path)
    assert model.evaluation.mean == 3.0 and model.attempt == 1
    add(tmp_path, 4, 5.0, attempt=2)
    (model,) = stored_models(tmp_path)
    assert model.evaluation.mean == 5.0 and model.attempt == 2


def test_what_is_not_as_stored_is_not_loaded(tmp_path):
    add(tmp_path, 4)
    (model,) = stored_models(tmp_path)
    content = bytearray(model.path.read_bytes())
    content[len(content) // 2] ^= 1
    model.path.write_bytes(content)
    with pytest.raises(ValueError, match=r"000000000004\.npz does not match the hash"):
        load_parameters(model)
    with pytest.raises(ConfigError, match="cannot be exported"):
        export_model(model, tmp_path / "out.npz")
    assert not list(tmp_path.glob("*out*"))
    model.path.unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        load_parameters(model)
    model.path.with_suffix(".json").write_text('{"format": 1')
    assert stored_models(tmp_path) == []


def test_an_exported_model_needs_numpy_alone(tmp_path):
    add(tmp_path, 4, 2.0)
    export_model(find_model(tmp_path), tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        found = dict(file.items())
    said = json.loads(str(found.pop("hpcrl")))
    assert (said["version"], said["evaluation"]["mean"]) == (4, 2.0)
    assert {name: values.tolist() for name, values in found.items()} == {
        name: values.tolist() for name, values in parameters(4).items()
    }
    for path in (tmp_path / "out.pt", tmp_path / "nowhere/out.npz"):
        with pytest.raises(ConfigError):
            export_model(find_model(tmp_path), path)


def killed_at(number, run, version):
    """A process that stores a version ends before its step `number`; whether it got there."""
    child = os.fork()
    if child == 0:
        left = [number]

        def counted(function):
            def call(*arguments, **keywords):
                if left[0] == 0:
                    os._exit(9)
                left[0] -= 1
                return function(*arguments, **keywords)

            return call

        os.fsync, models.sha256 = counted(os.fsync), counted(models.sha256)
        Path.replace, Path.unlink = counted(Path.replace), counted(Path.unlink)
        try:
            add(run, version, 1.0, attempt=2, values=100 + version)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("version", [3, 2], ids=["a new one", "another one of this version"])
def test_a_kill_at_any_point_leaves_whole_models_and_the_next_one_tidies_up(tmp_path, version):
    number, killed, found = 0, True, []
    while killed:
        run = tmp_path / str(number)
        run.mkdir()
        for before in (1, 2):
            add(run, before, 5.0 * before)
        killed = killed_at(number, run, version)
        for model in stored_models(run):
            assert load_parameters(model)["net.weight"][0, 0] == model.version + 100 * (model.attempt - 1)
        found.append([(model.version, model.attempt) for model in stored_models(run)])
        others = {2} if version == 3 else {1}
        assert others <= set(versions(run))
        add(run, version, 1.0, attempt=2, values=100 + version)
        assert versions(run) == sorted({version, *others})
        assert len(files(run)) == 4
        number += 1
    assert number > 8 and found[0] == [(1, 1), (2, 1)] and found[-1][-1] == (version, 2)


def test_a_disk_that_refuses_leaves_what_was_there(tmp_path, monkeypatch):
    for version in (1, 2):
        add(tmp_path, version)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        add(tmp_path, 3)
    assert [load_parameters(model)["net.weight"][0, 0] for model in stored_models(tmp_path)] == [1, 2]
