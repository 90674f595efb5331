"""A measurement on ranks of its own: started here with mpiexec, or, inside a world, on the ranks that are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from hpcrl.config import ConfigError, ExitCode, load_object
from hpcrl.launch.launcher import find_launcher, permissions
from hpcrl.launch.situation import look

REQUEST_VARIABLE = "HPCRL_BENCH_REQUEST"
_MARK = "hpcrl bench result: "
"""Begins the line with the result: libraries may write before and after it."""


def start_ranks(function: str, arguments: dict[str, Any], num_ranks: int) -> dict[str, Any]:
    """Run `package.module:function(comm, **arguments)` on `num_ranks` new ranks of this machine.

    Args:
        function: Returns a dict of JSON types on rank 0, which is the result.
        arguments: Keyword arguments, JSON types only.
        num_ranks: At least 1.

    Raises:
        ConfigError: there is no launcher.
        RuntimeError: a rank failed; the message ends with the end of the ranks' output.
    """
    request = json.dumps({"function": function, "arguments": arguments})
    command = [find_launcher(), "-n", str(num_ranks), sys.executable, "-P", "-m", "hpcrl.bench.mpi.ranks"]
    ran = subprocess.run(
        command,
        env={**os.environ, **permissions(), "OMP_NUM_THREADS": "1", REQUEST_VARIABLE: request},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in ran.stdout.splitlines() if line.startswith(_MARK)]
    if ran.returncode != 0 or len(found) != 1:
        raise RuntimeError(
            f"{function} on {num_ranks} ranks ended with exit code {ran.returncode}:\n"
            f"{(ran.stdout + ran.stderr)[-2000:].strip()}"
        )
    result: dict[str, Any] = json.loads(found[0].removeprefix(_MARK))
    return result


def join_ranks(function: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Run `package.module:function(comm, **arguments)` as one rank of the world there is; None but on rank 0.

    Collective over the world. An exception on any rank ends them all. Raises ConfigError where launcher and MPI
    library do not belong together, or the measurement cannot be made on these ranks.
    """
    from hpcrl.launch.inside import measure_rank

    situation = look()
    result = measure_rank(situation, lambda comm: load_object(function, "measurement")(comm, **arguments))
    return result if situation.rank == 0 else None


def main() -> int:
    """Be one of the ranks of `start_ranks`."""
    request = json.loads(os.environ[REQUEST_VARIABLE])
    try:
        result = join_ranks(request["function"], request["arguments"])
    except ConfigError as error:
        if look().rank == 0:
            sys.stderr.write(f"hpcrl: {error}\n")
        return int(ExitCode.BAD_CONFIGURATION)
    if result is not None:
        sys.stdout.write(f"\n{_MARK}{json.dumps(result)}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
