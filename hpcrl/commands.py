"""What the command line knows: each command a few lines that call into the package."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcrl import __version__
from hpcrl.audit import arguments as auditing
from hpcrl.bench import arguments as benching
from hpcrl.bench.plan import arguments as planning
from hpcrl.comm.signals import SignalFlag
from hpcrl.config import ConfigError, ExitCode
from hpcrl.config.command_line import add_run_command
from hpcrl.diagnose import arguments as diagnosing
from hpcrl.drill import arguments as drilling
from hpcrl.live import arguments as living
from hpcrl.showing import arguments as showing

_RUN_HELP = """\
RECIPE is path/to/file.py:function, package.module:function, a config.json, a run directory, or a .yaml file with a
line `recipe: ...` and overrides. Outside an MPI world the ranks are started here; under mpiexec or srun this process
joins as one of them.

  hpcrl run jobs/cartpole.py:impala
  hpcrl run jobs/cartpole.py:ppo --ranks 3 --set seed=7
  mpiexec -n 7 hpcrl run jobs/cartpole.py:impala --set ranks.actors=4 --set ranks.learners=2
  hpcrl run runs/cartpole-impala-0-001 --resume must

exit codes: 0 finished, 75 stopped cleanly before the budget, 2 wrong configuration (nothing was started)
or a time limit too short for one update, 3 a rank died, 4 gradients were not finite, 1 anything else
"""

_SUBMIT_HELP = """\
NAME is a profile slurm/NAME.toml (slurm/example.toml explains every key), or a path to a .toml file.

  hpcrl render jobs/cartpole.py:impala --site NAME                   print the script; needs no Slurm and no MPI
  hpcrl submit jobs/cartpole.py:impala --site NAME --nodes 2 --set ranks.actors=8 --time 4:00:00
  hpcrl submit jobs/cartpole.py:impala --site NAME --seeds 0-4       a job array, one run per seed
  hpcrl submit jobs/cartpole.py:impala --site NAME --sweep algorithm.learning_rate=1e-3,3e-4 --seeds 0-2
                                                                     one array of 6 runs, each in its own directory
  hpcrl submit jobs/cartpole.py:impala --site NAME --het             learners and actors on nodes of their own kind
  hpcrl submit jobs/cartpole.py:impala --site NAME --chain 4         4 jobs in turn: goes on also after a kill

The job ends with hpcrl's exit code. Some time before its limit all ranks are told to stop; then it puts itself into the
queue again. What no script survives (SIGKILL at the limit, a site that does not requeue) takes the next job of a chain.
"""


def run_line(argv: Sequence[str], flag: SignalFlag) -> None:
    """Do what a command line says, and exit with its code. `flag`: installed where the command needs it."""
    try:
        arguments = _parser().parse_args(argv, argparse.Namespace(flag=flag))
    except SystemExit as end:  # --help, or options that there are not
        if end.code and argv and argv[0] in ("run", "doctor"):
            from hpcrl.launch.supervise import leave

            leave(int(ExitCode.BAD_CONFIGURATION), all_ranks_leave=True)
        raise
    sys.path.insert(0, str(Path.cwd()))  # modules of the user's, as with python -m, however this was started
    try:
        code = int(arguments.command(arguments))
    except ConfigError as error:
        sys.stderr.write(f"hpcrl: {error}\n")
        code = int(ExitCode.BAD_CONFIGURATION)
    sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hpcrl", description="Reinforcement learning as MPI batch jobs.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    raw = argparse.RawDescriptionHelpFormatter

    run = commands.add_parser("run", help="train", epilog=_RUN_HELP, formatter_class=raw)
    _add_recipe(run)
    run.add_argument(
        "--resume",
        choices=("never", "if-exists", "must"),
        default="never",
        help="go on with the run in storage.run_dir, or in RECIPE where that is a run directory, from its newest "
        "checkpoint (default: never)",
    )
    run.set_defaults(command=_run)

    for name, command, help_text in (
        ("submit", _submit, "send a training run to Slurm"),
        ("render", _render, "print the batch script that `submit` sends; starts nothing"),
    ):
        batch = commands.add_parser(name, help=help_text, epilog=_SUBMIT_HELP, formatter_class=raw)
        _add_recipe(batch)
        _add_job(batch)
        if name == "submit":
            batch.add_argument(
                "--chain",
                type=int,
                default=1,
                metavar="N",
                help="N jobs for the run, each starts when the one before has ended, however that was",
            )
        batch.set_defaults(command=command)

    config = commands.add_parser(
        "config", help="print the checked, resolved configuration as JSON; starts nothing"
    )
    _add_recipe(config)
    config.set_defaults(command=_config)

    add_run_command(commands, "describe", _describe, "what a run was and did, on one screen", json=True)

    auditing.add_command(commands)
    auditing.add_file_commands(commands)
    living.add_commands(commands)
    showing.add_commands(commands)
    diagnosing.add_command(commands)

    schema = commands.add_parser("schema", help="every table and column of a result file, as Markdown")
    schema.set_defaults(command=_schema)

    doctor = commands.add_parser(
        "doctor",
        help="what a run would find here: cores, nodes, shared memory, MPI, its speed",
        description="By itself it looks at this machine; started as runs are (`srun --mpi=pmi2 hpcrl doctor`, or "
        "mpiexec) it looks at every rank and measures. With a RECIPE: what that would need, and what it contradicts.",
    )
    _add_recipe(doctor, nargs="?")
    doctor.add_argument("--no-speed", action="store_true", help="do not measure messages and sums in a world")
    doctor.add_argument(
        "--limit",
        type=float,
        default=60.0,
        metavar="S",
        help="a world is given up after so long (default: 60)",
    )
    doctor.add_argument("--json", action="store_true", help="as one JSON object")
    doctor.set_defaults(command=_doctor)

    drill = drilling.add_command(commands)
    _add_recipe(drill)
    drill.set_defaults(command=_drill)

    check = commands.add_parser("check", help="test an environment of yours against what hpcrl expects")
    check.add_argument("path", metavar="PACKAGE.MODULE:MAKE", help="also gymnasium:ID, envpool:ID or toy:ID")
    check.set_defaults(command=_check)

    planning.add_command(commands, _add_recipe).set_defaults(command=_plan)

    bench = commands.add_parser("bench", help="measure speed side by side, as ratios in one run")
    kinds = bench.add_subparsers(required=True, metavar="WHAT")
    benching.add_recipe_benches(kinds, _add_recipe, _bench_recipe)
    benching.add_rank_benches(kinds, _bench)
    return parser


def _add_recipe(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    parser.add_argument("recipe", metavar="RECIPE", nargs=nargs)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=VALUE",
        dest="overrides",
        help="override a key; repeatable",
    )
    parser.add_argument(
        "--ranks", type=int, help="total ranks: changes the actors (pipeline) or workers (synchronous)"
    )


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--site", required=True, metavar="NAME", help="profile of the cluster")
    parser.add_argument("--nodes", type=int, help="nodes; with --het, of the actors")
    parser.add_argument(
        "--time", metavar="LIMIT", help="in Slurm's forms: minutes, mm:ss, hh:mm:ss, d-hh, ..."
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="A.B=V,V",
        help="a job array with one run for each value; repeatable: for each combination",
    )
    parser.add_argument("--seeds", metavar="0-4", help="the same for seed; as sbatch --array takes numbers")
    parser.add_argument("--at-once", type=int, metavar="N", help="so many runs of the array at a time")
    parser.add_argument(
        "--het",
        action="store_true",
        help="learners and replay in one component of the job, actors in another",
    )


def _submit(arguments: argparse.Namespace) -> int:
    from hpcrl.launch.sbatch import submit_command

    wishes = _wishes(arguments)
    return submit_command(arguments.recipe, arguments.overrides, arguments.site, wishes, arguments.chain)


def _render(arguments: argparse.Namespace) -> int:
    from hpcrl.launch.sbatch import render_command

    return render_command(arguments.recipe, arguments.overrides, arguments.site, _wishes(arguments))


def _wishes(arguments: argparse.Namespace) -> Any:
    from hpcrl.launch.batch import Wishes

    return Wishes(
        num_ranks=arguments.ranks,
        nodes=arguments.nodes,
        time=arguments.time,
        seeds=arguments.seeds,
        heterogeneous=arguments.het,
        sweep=tuple(arguments.sweep),
        at_once=arguments.at_once,
    )


def _run(arguments: argparse.Namespace) -> int:
    from hpcrl.launch.start import run_command

    recipe = (arguments.recipe, arguments.overrides, arguments.ranks)
    return run_command(*recipe, arguments.flag, arguments.resume)


def _config(arguments: argparse.Namespace) -> int:
    from hpcrl.launch.recipes import load_config

    sys.stdout.write(load_config(arguments.recipe, arguments.overrides, arguments.ranks).to_json())
    return 0


def _describe(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from hpcrl.storage.summary import describe, render

    summary = describe(Path(arguments.run))
    if arguments.json:
        sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    else:
        Console().print(render(summary))
    return 0


def _schema(arguments: argparse.Namespace) -> int:
    from hpcrl.storage.schema_doc import markdown

    sys.stdout.write(markdown())
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from hpcrl.launch.doctor import Question, doctor_command

    measure = None if arguments.no_speed else "hpcrl.bench.mpi.speeds:speeds"
    recipe = (arguments.recipe, arguments.overrides, arguments.ranks)
    return doctor_command(Question(*recipe, arguments.json, measure, arguments.limit), arguments.flag)


def _drill(arguments: argparse.Namespace) -> int:
    from hpcrl.drill.command import drill_command

    return drill_command(arguments.recipe, arguments.overrides, arguments.ranks, drilling.options(arguments))


def _check(arguments: argparse.Namespace) -> int:
    from hpcrl.testing import check_command

    return check_command(arguments.path)


def _plan(arguments: argparse.Namespace) -> int:
    from hpcrl.bench.plan.command import plan_command
    from hpcrl.launch.recipes import load_config

    return plan_command(load_config(arguments.recipe, arguments.overrides), arguments)


def _bench_recipe(arguments: argparse.Namespace) -> int:
    from hpcrl.bench.command import bench_recipe_command
    from hpcrl.launch.recipes import load_config

    config = load_config(arguments.recipe, arguments.overrides, arguments.ranks)
    return bench_recipe_command(config, arguments)


def _bench(arguments: argparse.Namespace) -> int:
    from hpcrl.bench.mpi.command import Options, Wanted, bench_command

    options = Options(arguments.rounds, arguments.sizes, arguments.ranks, arguments.json)
    wanted = None
    if arguments.parameters is not None:
        wanted = Wanted(arguments.parameters, arguments.nodes, arguments.ranks_per_node, arguments.gbit)
    return bench_command(arguments.what, options, wanted)
