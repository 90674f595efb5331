"""Environments of ranks that no signal stops, but SIGKILL."""

import signal

from hpcrl.comm.signals import SIGNALS
from hpcrl.envs.toy import Chain
from hpcrl.envs.toy_vector import ToyVectorEnv


def make(num_envs, seeds, seconds_per_step):
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return ToyVectorEnv(Chain(range(num_envs), seeds, seconds_per_step=seconds_per_step), num_envs)
