"""Where hosts cannot be emulated: one sentence and a code of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.command import UNAVAILABLE

CLUSTER = Path(__file__).with_name("cluster")


def refused(command, **how):
    done = subprocess.run(
        [*command, "--", "true"], check=False, capture_output=True, text=True, timeout=60, **how
    )
    assert done.returncode == UNAVAILABLE, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("cluster: emulated hosts need ")
    return line


def test_a_tool_is_missing(tmp_path):
    line = refused([sys.executable, str(CLUSTER), "run"], env=os.environ | {"PATH": str(tmp_path)})
    assert "`ip`" in line and "iproute2" in line


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to lose")
def test_root_of_a_container_that_may_not_make_namespaces():
    without = ["setpriv", "--bounding-set", "-sys_admin,-net_admin"]
    assert "root" in refused([*without, sys.executable, str(CLUSTER), "run"])
