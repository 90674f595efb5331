"""Time limits as Slurm reads them; tests/slurm compares with a real one."""

import pytest

from hpcrl.config import ConfigError, in_words, parse_minutes, slurm_time

FORMS = {
    "90": 90,
    "1:30": 2,  # a minute and a half
    "2:00": 2,
    "1:30:00": 90,
    "01:00:01": 61,
    "0:0:1": 1,
    "1-0": 1440,
    "2-12": 3600,
    "1-02:30": 1590,
    "1-02:30:30": 1591,
    "0-00:05:00": 5,
    "120:00": 120,
    "48:00:00": 2880,
}
"""As text, and as Slurm's minutes."""


@pytest.mark.parametrize("text", FORMS)
def test_forms(text):
    assert parse_minutes(text) == FORMS[text]
    assert parse_minutes(slurm_time(FORMS[text])) == FORMS[text]


@pytest.mark.parametrize(
    "text", ["", "0", "0:00", "0-0", "1h", "-5", "1:2:3:4", "1-2-3", "infinite", "1.5", "1-"]
)
def test_no_limit(text):
    with pytest.raises(ConfigError, match="days-hours:minutes"):
        parse_minutes(text)


@pytest.mark.parametrize(
    ("minutes", "words"),
    [
        (1, "1 minute"),
        (60, "1 hour"),
        (90, "1 hour 30 minutes"),
        (1440, "1 day"),
        (2 * 1440 + 61, "2 days 1 hour 1 minute"),
    ],
)
def test_in_words(minutes, words):
    assert in_words(minutes) == words
