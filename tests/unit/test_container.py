"""slurm/hpcrl.def: what it names exists, and its shell can be read. No image is built here."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
TEXT = (TOP / "slurm/hpcrl.def").read_text()
HEADER, *PARTS = re.split(r"^%(\w+)\n", TEXT, flags=re.MULTILINE)
SECTIONS = dict(zip(PARTS[::2], PARTS[1::2], strict=True))
ARGUMENTS = dict(line.strip().split("=", 1) for line in SECTIONS["arguments"].split("\n") if line.strip())
PACKAGE = configparser.ConfigParser()
PACKAGE.read(TOP / "setup.cfg")


def test_sections_and_arguments():
    assert "Bootstrap: docker\nFrom: python:{{ python }}-slim\n" in HEADER
    want = ["arguments", "files", "post", "environment", "runscript", "test", "help"]
    assert PARTS[::2] == want
    assert set(re.findall(r"{{ (\w+) }}", TEXT)) == ARGUMENTS.keys()


def test_versions_are_those_of_the_project():
    assert f">={ARGUMENTS['python']}" == PACKAGE["options"]["python_requires"]
    assert f"{ARGUMENTS['torch']}+cpu" in (TOP / ".ci/run").read_text()
    assert f"--build-arg torch={ARGUMENTS['torch']}+cpu " in HEADER


def test_what_is_copied_exists_and_is_what_the_package_needs():
    copied = dict(line.split() for line in SECTIONS["files"].split("\n") if line.strip())
    assert all(
        (TOP / source).exists() and target == f"/opt/hpcrl/{source}" for source, target in copied.items()
    )
    metadata = PACKAGE["metadata"]
    needed = {metadata["long_description"].removeprefix("file: "), metadata["license_files"], "hpcrl"}
    assert needed | {"setup.cfg", "pyproject.toml"} == copied.keys()
    extras = re.findall(r"/opt/hpcrl\[(\w+)\]", SECTIONS["post"])
    assert extras and set(extras) <= set(PACKAGE["options.extras_require"])
    assert "hpcrl" in PACKAGE["options.entry_points"]["console_scripts"]


@pytest.mark.parametrize("section", ["post", "environment", "runscript", "test"])
def test_shell(section):
    script = re.sub(r"{{ (\w+) }}", lambda found: ARGUMENTS[found.group(1)], SECTIONS[section])
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_the_command_of_the_site_profile(tmp_path):
    (command,) = re.findall(r'^# +command = "(.+)"$', HEADER, flags=re.MULTILINE)
    site = tmp_path / "it.toml"
    site.write_text(f'command = "{command}"\n')
    arguments = [sys.executable, "-m", "hpcrl", "render", "jobs/cartpole.py:impala", "--site", str(site)]
    script = subprocess.run(arguments, cwd=TOP, capture_output=True, text=True, check=True).stdout
    assert f"{command} run jobs/cartpole.py:impala" in script.replace(f"{TOP}/", "")
