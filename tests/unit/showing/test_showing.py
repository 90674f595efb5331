"""`hpcrl models` and `hpcrl play`, on a run that stored models, as a person uses them."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageSequence

from hpcrl.__main__ import main
from hpcrl.algorithms import make_algorithm
from hpcrl.config import RunConfig
from hpcrl.envs import make_env_spec
from hpcrl.storage import RunDirectory, checkpoint
from hpcrl.storage.models import ModelStore, Score

HERE = "tests.unit.showing.drawn_envs"


def make_run(folder, env, *, means=(1.0, 3.0, 2.0), seed=0):
    """A run with a model for each of `means`, versions 10, 20, ...; its path and the parameters of each."""
    values = {
        "name": "toy",
        "seed": seed,
        "env": env,
        "algorithm": {"name": "ppo"},
        "model": {"hidden_sizes": [4]},
        "evaluation": {"episodes": 3, "seed": 5},
        "storage": {"runs_dir": str(folder)},
    }
    config = RunConfig.parse(values)
    algorithm, stored = make_algorithm(config, make_env_spec(config.env)), []
    with RunDirectory.create(config) as run:
        for number, mean in enumerate(means, 1):
            algorithm.parameters.numpy[...] = np.random.default_rng(number).normal(
                size=algorithm.parameters.size
            )
            stored.append(algorithm.parameters.named())
            score = Score(mean, 0.5, 3, 5, greedy=True)
            ModelStore(run.path, 9).add(10 * number, stored[-1], score, env_steps=1000 * number, attempt=1)
        part = checkpoint.write_part(run.path, 40, "learner-0", {"algorithm": algorithm.state()})
        checkpoint.complete(run.path, 40, {"learner-0": part}, meta={"env_steps": 4000, "score": None})
        run.write_status("finished", exit_code=0)
    return run.path, stored


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path, {"id": f"{HERE}:make", "engine": "custom", "kwargs": {"ends": 5}})[0]


@pytest.fixture
def hpcrl(capsys):
    def command(*arguments, code=0):
        with pytest.raises(SystemExit) as ended:
            main([str(one) for one in arguments])
        output, errors = capsys.readouterr()
        assert ended.value.code == code, errors
        return errors if code else output

    return command


class TestModels:
    def test_the_list(self, run, hpcrl):
        lines = hpcrl("models", run).splitlines()
        assert [line.split()[0] for line in lines[2:]] == ["10", "20", "30"]
        assert "3.00 ± 0.50 (3)" in lines[3] and lines[3].rstrip().endswith("best")
        assert lines[4].rstrip().endswith("newest, current")
        said = json.loads(hpcrl("models", run, "--json"))
        assert (said["best"], said["newest"], said["current"], said["rolled_back"]) == (20, 30, 30, False)
        assert [model["env_steps"] for model in said["models"]] == [1000, 2000, 3000]

    def test_rolling_back_is_what_play_takes_until_it_ends(self, run, hpcrl):
        hpcrl("models", run, "--rollback", "best")
        assert json.loads(hpcrl("play", run, "--json"))["policy"] == "model 20, of 2,000 env_steps"
        assert json.loads(hpcrl("models", run, "--json"))["rolled_back"] is True
        hpcrl("models", run, "--rollback", "newest")
        assert json.loads(hpcrl("play", run, "--json"))["policy"] == "model 30, of 3,000 env_steps"

    def test_tags(self, run, hpcrl):
        hpcrl("models", run, "--tag", "paper", "10")
        assert json.loads(hpcrl("play", run, "--model", "paper", "--json"))["policy"].startswith("model 10,")
        hpcrl("models", run, "--tag", "paper", "best")
        assert json.loads(hpcrl("models", run, "--json"))["tags"] == {"paper": 20}
        hpcrl("models", run, "--untag", "paper")
        assert json.loads(hpcrl("models", run, "--json"))["tags"] == {}
        assert "no tag 'paper'; there are none" in hpcrl("models", run, "--untag", "paper", code=2)
        for name in ("best", "7", "a b"):
            assert f"a tag cannot be {name!r}" in hpcrl("models", run, "--tag", name, "10", code=2)

    def test_what_is_not_there(self, run, hpcrl, tmp_path):
        assert "no model '99'; there are 10, 20, 30" in hpcrl("models", run, "--rollback", "99", code=2)
        assert "holds no run" in hpcrl("models", tmp_path, code=2)
        assert "must end in .npz" in hpcrl("models", run, "--export", "10", tmp_path / "x.pt", code=2)

    def test_the_export(self, run, hpcrl, tmp_path):
        hpcrl("models", run, "--export", "best", tmp_path / "policy.npz")
        with np.load(tmp_path / "policy.npz") as file:
            assert json.loads(str(file["hpcrl"]))["version"] == 20
            assert {"policy_head.weight", "value_head.bias"} <= set(file.files)


class TestPlay:
    def test_what_is_printed(self, run, hpcrl):
        text = hpcrl("play", run, "--episodes", 2, "--seed", 9, "--sample")
        assert "model 30, of 3,000 env_steps" in text
        assert "return 5.00 ± 0.00 (mean, standard deviation) over 2 episodes, seed 9, sampled" in text
        said = json.loads(hpcrl("play", run, "--json"))
        assert (said["seed"], said["greedy"], said["returns"], said["lengths"]) == (
            5,
            True,
            [5.0] * 3,
            [5] * 3,
        )

    def test_each_model_plays_as_itself_and_sampling_follows_the_seed(self, tmp_path, hpcrl):
        run, _ = make_run(tmp_path, {"id": "chain", "engine": "toy"})
        lengths = {
            version: json.loads(hpcrl("play", run, "--model", version, "--json"))["returns"]
            for version in (10, 20, 30)
        }
        assert len({str(one) for one in lengths.values()}) > 1
        sampled = [
            json.loads(hpcrl("play", run, "--sample", "--episodes", 9, "--seed", seed, "--json"))["lengths"]
            for seed in (1, 1, 2)
        ]
        assert sampled[0] == sampled[1] != sampled[2]

    def test_a_checkpoint_is_played_where_asked_for_or_no_model_is_stored(self, run, tmp_path, hpcrl):
        assert "checkpoint 40, of 4,000 env_steps" in hpcrl("play", run, "--checkpoint", "40")
        assert "no checkpoint '41'; there are 40, and newest" in hpcrl(
            "play", run, "--checkpoint", "41", code=2
        )
        (other, _) = make_run(tmp_path, {"id": "chain", "engine": "toy"}, means=(), seed=1)
        assert "checkpoint 40" in hpcrl("play", other)
        assert "has stored no model" in hpcrl("play", other, "--model", "best", code=2)

    def test_what_cannot_be_played(self, run, hpcrl):
        assert "use at least 1" in hpcrl("play", run, "--episodes", 0, code=2)
        path = run / "models/000000000030.npz"
        path.write_bytes(path.read_bytes()[:-1])
        assert "does not match the hash" in hpcrl("play", run, code=2)
        values = json.loads((run / "config.json").read_text())
        values["model"]["hidden_sizes"] = [5]
        (run / "config.json").write_text(json.dumps(values))
        assert "saved with another model" in hpcrl("play", run, "--model", "20", code=2)

    def test_neither_needs_mpi(self, run):
        code = (
            "import sys\n"
            "class Refuse:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.split('.')[0] in sys.argv[1].split(','):\n"
            "            raise ImportError(name)\n"
            "sys.meta_path.insert(0, Refuse())\n"
            "from hpcrl.__main__ import main\n"
            "main(sys.argv[2:])\n"
        )
        for without, name in (("mpi4py,torch", "models"), ("mpi4py", "play")):
            command = [sys.executable, "-c", code, without, name, str(run)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0 and "30" in done.stdout, done.stderr


class TestVideo:
    @pytest.mark.parametrize("ending", ["gif", "webp"])
    def test_the_first_episode_is_seen_from_its_first_to_its_last_picture(self, run, hpcrl, tmp_path, ending):
        path = tmp_path / f"video.{ending}"
        text = hpcrl("play", run, "--video", path)
        assert "6 pictures, in custom; return 5.00 in 5 env_steps" in text
        with Image.open(path) as image:
            frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]
        red = [int((frame[0, :, 0] > 128).argmax()) for frame in frames]
        assert red == [0, 2, 4]  # every other one of 100 per second
        assert all(
            (frame[:, column] > [200, -1, -1]).all() for frame, column in zip(frames, red, strict=True)
        )
        assert frames[0].shape == (8, 16, 3)

    @pytest.mark.parametrize(
        ("env", "words"),
        [
            ({"id": "chain", "engine": "toy"}, ["env.engine=toy", "nothing to see"]),
            ({"id": f"{HERE}:make_undrawn", "engine": "custom"}, ["render_mode"]),
            (
                {"id": f"{HERE}:make", "engine": "custom", "kwargs": {"picture": False}},
                ["renders nothing", "rgb_array"],
            ),
            (
                {"id": "CartPole-v1", "engine": "envpool", "kwargs": {"max_episode_steps": 9}},
                ["env.engine=envpool draws no pictures", "max_episode_steps"],
            ),
            ({"id": "Catch-v0", "engine": "envpool"}, ["gymnasium cannot stand in", "Catch-v0"]),
        ],
        ids=["toy", "no render_mode", "no picture", "envpool kwargs", "envpool only"],
    )
    def test_what_has_no_pictures_is_said_by_name(self, tmp_path, hpcrl, env, words):
        run, _ = make_run(tmp_path, env)
        errors = hpcrl("play", run, "--video", tmp_path / "video.gif", code=2)
        assert all(word in errors for word in words), errors
        assert not (tmp_path / "video.gif").exists()

    def test_what_is_missing_is_named_with_what_brings_it(self, tmp_path, hpcrl, monkeypatch):
        """Also: one of EnvPool is drawn by gymnasium, as far as that can draw."""
        monkeypatch.setitem(sys.modules, "pygame", None)
        run, _ = make_run(tmp_path, {"id": "CartPole-v1", "engine": "envpool"})
        errors = hpcrl("play", run, "--video", tmp_path / "video.gif", code=2)
        assert "pygame is not installed" in errors and 'pip install "hpcrl[video]"' in errors
        monkeypatch.setattr("hpcrl.showing.video.find_spec", lambda name: None)
        errors = hpcrl("play", run, "--video", tmp_path / "video.gif", code=2)
        assert "Pillow" in errors and 'pip install "hpcrl[video]"' in errors

    def test_files_that_cannot_be(self, run, hpcrl, tmp_path):
        assert "must end in .gif or .webp" in hpcrl("play", run, "--video", "video.mp4", code=2)
        assert "there is no folder" in hpcrl("play", run, "--video", tmp_path / "a/b.gif", code=2)
