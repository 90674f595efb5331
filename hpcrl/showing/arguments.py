"""The command lines of `hpcrl models` and `hpcrl play`. Loads nothing that reads files."""

from __future__ import annotations

import argparse
from typing import Any

from hpcrl.config.command_line import add_run_command

_MODELS_HELP = """\
A run stores a model, the policy's parameters of one version with their normalizers, at each evaluation
(evaluation.every_env_steps) and at its end. RUN/models keeps the newest (models.keep), the best evaluated one, tagged
ones and the current one. VERSION is the number of the update, a tag, or best, newest or current.

`current` is what `hpcrl play` takes by itself: the newest model, until --rollback names another one, which then stays
the current one also when newer ones are stored; `--rollback newest` ends that. Training is not touched by it: --resume
goes on from a checkpoint, which holds optimizer, queue and environments; a model does not.

  hpcrl models runs/cartpole-0-001
  hpcrl models runs/cartpole-0-001 --tag paper best
  hpcrl models runs/cartpole-0-001 --rollback 120
  hpcrl models runs/cartpole-0-001 --export paper policy.npz

The exported file is numpy's: `numpy.load("policy.npz")` gives an array per name of the network (those of its
state_dict), float32, and `hpcrl`, a JSON text that says which model it is. With torch and without hpcrl:
  {name: torch.from_numpy(values) for name, values in numpy.load("policy.npz").items() if name != "hpcrl"}

exit codes: 0 done, 2 there is no such run or model
"""

_PLAY_HELP = """\
Plays a stored model in the environment of its run, without MPI: by itself the current one (see `hpcrl models --help`),
or, where none is stored, that of the newest checkpoint. Episodes are those of the run's own evaluation unless --seed
says otherwise; returns are raw, of whole episodes.

  hpcrl play runs/cartpole-0-001
  hpcrl play runs/cartpole-0-001 --model best --episodes 100 --seed 7
  hpcrl play runs/cartpole-0-001 --video cartpole.gif

A video shows the first episode, as an animated .gif or .webp. It needs `pip install "hpcrl[video]"`, and an environment
that draws itself (render_mode rgb_array). Those of EnvPool do not: gymnasium's of the same id takes their place, if it
has the same observations and actions.

exit codes: 0 played, 2 there is no such run or model, or nothing to draw or to write it with
"""


def add_commands(commands: Any) -> None:
    """Add `models` and `play` to the commands of hpcrl."""
    text = "models that a run has stored: list, tag, roll back, export"
    models = add_run_command(commands, "models", _models, text, epilog=_MODELS_HELP)
    action = models.add_mutually_exclusive_group()
    action.add_argument("--tag", nargs=2, metavar=("NAME", "VERSION"), help="name a model, which then stays")
    action.add_argument("--untag", metavar="NAME", help="take the name away")
    action.add_argument("--rollback", metavar="VERSION", help="make a model the current one")
    action.add_argument("--export", nargs=2, metavar=("VERSION", "FILE"), help="write a model to FILE.npz")
    action.add_argument("--json", action="store_true", help="the list as one JSON object")
    text = "evaluate a stored model, or make a video of it"
    play = add_run_command(commands, "play", _play, text, epilog=_PLAY_HELP, json=True)
    which = play.add_mutually_exclusive_group()
    which.add_argument("--model", metavar="VERSION", help="a version, a tag, or best, newest or current")
    which.add_argument(
        "--checkpoint", metavar="UPDATE", help="that of a checkpoint instead; or best or newest"
    )
    play.add_argument("--episodes", type=int, metavar="N", help="default: evaluation.episodes, at least 1")
    play.add_argument("--seed", type=int, metavar="S", help="of the environments (default: evaluation.seed)")
    play.add_argument("--sample", action="store_true", help="draw actions, instead of the most likely ones")
    play.add_argument(
        "--video", metavar="FILE", help="make a video of the first episode: FILE.gif or FILE.webp"
    )


def _models(arguments: argparse.Namespace) -> int:
    from hpcrl.showing.models import models_command

    return models_command(arguments)


def _play(arguments: argparse.Namespace) -> int:
    from hpcrl.showing.play import play_command

    return play_command(arguments)
