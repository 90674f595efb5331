"""Time limits as Slurm reads them. Pure."""

from __future__ import annotations

import re

from hpcrl.config.base import ConfigError

_NUMBER = r"(\d+)"
_FORMS = {
    rf"{_NUMBER}": (60,),
    rf"{_NUMBER}:{_NUMBER}": (60, 1),
    rf"{_NUMBER}:{_NUMBER}:{_NUMBER}": (3600, 60, 1),
    rf"{_NUMBER}-{_NUMBER}": (86400, 3600),
    rf"{_NUMBER}-{_NUMBER}:{_NUMBER}": (86400, 3600, 60),
    rf"{_NUMBER}-{_NUMBER}:{_NUMBER}:{_NUMBER}": (86400, 3600, 60, 1),
}
"""Seconds that each number of a form counts."""


def parse_minutes(text: str) -> int:
    """Minutes of a time limit, seconds rounded up to a minute, as `sbatch --time` takes it: a bare number is minutes.

    Raises ConfigError for other forms, and for no limit at all, before which no run could be stopped.
    """
    for form, units in _FORMS.items():
        match = re.fullmatch(form, text.strip())
        if match is not None:
            seconds = sum(int(part) * unit for part, unit in zip(match.groups(), units, strict=True))
            if seconds == 0:
                break
            return -(-seconds // 60)
    raise ConfigError(
        f"time limit {text!r} is none; use minutes, minutes:seconds, hours:minutes:seconds, days-hours, "
        "days-hours:minutes or days-hours:minutes:seconds, above 0: 90 is an hour and a half, 1:30 a minute and a half"
    )


def slurm_time(minutes: int) -> str:
    """The one form that nobody misreads: days-hours:minutes:seconds."""
    hours, minutes = divmod(minutes, 60)
    return f"{hours // 24}-{hours % 24:02d}:{minutes:02d}:00"


def in_words(minutes: int) -> str:
    """As "1 day 2 hours 5 minutes"."""
    hours, minutes = divmod(minutes, 60)
    parts = ((hours // 24, "day"), (hours % 24, "hour"), (minutes, "minute"))
    return (
        " ".join(f"{number} {unit}{'s' * (number != 1)}" for number, unit in parts if number) or "0 minutes"
    )
