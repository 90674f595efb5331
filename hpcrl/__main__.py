"""The `hpcrl` command. Loads next to nothing: a rank must be able to hear signals before anything slow begins."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hpcrl.comm.signals import SignalFlag


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the `hpcrl` command; exits with its code.

    From here on a signal does not end `hpcrl run`, nor `hpcrl doctor` as a task of srun (main thread only). A rank that
    dies of srun's SIGTERM while it is still loading, because another has refused to start, would hide that one's exit
    code.
    """
    arguments = sys.argv[1:] if argv is None else argv
    flag = SignalFlag()
    command = arguments[0] if arguments else ""
    if command == "run" or (command == "doctor" and "SLURM_STEP_ID" in os.environ):
        flag.install()
    from hpcrl.commands import run_line

    run_line(arguments, flag)


if __name__ == "__main__":
    main()
