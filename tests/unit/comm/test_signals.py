import os
import signal

import pytest

from hpcrl.comm.signals import SIGNALS, SignalFlag
from tests.processes import own_handlers


@pytest.fixture(autouse=True)
def handlers():
    with own_handlers():
        yield


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_sets_the_flag_and_nothing_else(number):
    flag = SignalFlag()
    flag.install()
    assert flag.received is None
    os.kill(os.getpid(), number)
    assert flag.received == number.name


def test_the_first_one_is_kept():
    flag = SignalFlag()
    flag.install()
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    assert flag.received == "SIGUSR1"


def test_removed_they_end_the_process_again():
    flag = SignalFlag()
    flag.install()
    flag.remove()
    assert {signal.getsignal(number) for number in SIGNALS} == {signal.SIG_DFL}


def test_these_are_the_signals():
    assert {number.name for number in SIGNALS} == {"SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"}
