from pathlib import Path

import pytest

from hpcrl.config import ConfigError, SiteConfig, load_site

SLURM = Path(__file__).parents[3] / "slurm"
PROFILES = sorted(SLURM.glob("*.toml"))


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_the_profiles_that_are_here(path):
    load_site(str(path))


def test_the_example_has_every_key_with_its_default():
    text = (SLURM / "example.toml").read_text()
    assert load_site(str(SLURM / "example.toml")) == SiteConfig()
    for name in SiteConfig.model_fields:
        assert f"\n{name} = " in text or f"\n# {name} = " in text or f"\n[{name}]" in text, name


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("partitions = 'x'", ["unknown key 'partitions'", "did you mean partition", "max_attempts"]),
        ("[learners]\nnode = 2", ["unknown key 'learners.node'", "did you mean nodes"]),
        ("nodes = 0", ["nodes=0"]),
        ("launcher = 'mpirun'", ["launcher='mpirun'", "'srun' or 'mpiexec'"]),
        ("signal = 'KILL'", ["signal='KILL'"]),
        ("time = '1h'", ["time limit '1h'"]),
        ("sbatch = ['gres=gpu:1']", ["'gres=gpu:1' is not an option"]),
        ("nodes = ", ["not valid TOML"]),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path, text, parts):
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_site(str(tmp_path / "site.toml"))
    for part in ["site.toml", *parts]:
        assert part in str(error.value)


def test_a_name_is_looked_for_here_first_and_then_beside_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_site("testcluster").partition == "main"
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/testcluster.toml").write_text("partition = 'mine'")
    assert load_site("testcluster").partition == "mine"


def test_an_unknown_name_gets_near_matches_and_the_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"no site 'exampel'; did you mean example\? Sites: example, testcluster"
    ):
        load_site("exampel")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_site("nowhere.toml")
