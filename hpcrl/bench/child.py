"""One measurement in a process of its own, so that threads, caches and imports of others do not count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from hpcrl.config import load_object


def call(function: str, arguments: dict[str, Any], *, one_core: bool) -> dict[str, Any]:
    """Run `package.module:function` with JSON `arguments` in a fresh interpreter and return its dict.

    Args:
        function: Where to find it; it must be importable there.
        arguments: Keyword arguments, JSON types only.
        one_core: Pin the process, with every thread that it starts, to one core, torch to one thread. False:
            leave cores and threads as they are by default.

    Raises:
        RuntimeError: the process failed; the message ends with the end of its error output.
    """
    environment = dict(os.environ)
    # Settings of this process must not slow the measured one: each starts from the libraries' defaults.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.pop(name, None)
    if one_core:
        environment["OMP_NUM_THREADS"] = "1"
    request = {"function": function, "arguments": arguments, "one_core": one_core}
    finished = subprocess.run(
        [sys.executable, "-m", "hpcrl.bench.child"],
        input=json.dumps(request),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        raise RuntimeError(
            f"{function} ended with exit code {finished.returncode}: {finished.stderr[-2000:].strip()}"
        )
    # The result is the last line: libraries may have written before it.
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Serve one request from standard input."""
    request = json.load(sys.stdin)
    if request["one_core"]:
        # Before any import that starts threads: they inherit it.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    function = load_object(request["function"], "measurement")
    sys.stdout.write("\n" + json.dumps(function(**request["arguments"])) + "\n")


if __name__ == "__main__":
    main()
