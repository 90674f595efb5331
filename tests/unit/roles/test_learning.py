"""What a learner makes sure of before it trains."""

from types import SimpleNamespace

import pytest
import torch

from hpcrl.config import EnvConfig, LagConfig, PPOConfig, RunConfig
from hpcrl.data.reuse import ONCE
from hpcrl.data.specs import gradient_spec
from hpcrl.data.trajectory import TrajectoryLayout
from hpcrl.models.staging import BatchStaging
from hpcrl.roles.account import FreshAccount
from hpcrl.roles.learning import Learning
from hpcrl.roles.timers import Timers


class Trained(Exception):
    """The update was begun."""


@pytest.mark.parametrize(("version", "error"), [(7, Trained), (6, RuntimeError)])
def test_nothing_older_than_the_bound_is_trained_on(version, error):
    """At update 9, under lag.max_lag=2."""

    def update(batch, reducer, progress):
        raise Trained

    config = RunConfig(
        name="x", env=EnvConfig(id="counting", engine="toy"), algorithm=PPOConfig(), lag=LagConfig(max_lag=2)
    )
    learning = Learning.__new__(Learning)
    learning._session = SimpleNamespace(config=config, trajectory_spec=None)
    learning._counters = SimpleNamespace(updates=9, env_steps=0)
    learning._reducer = learning._summed = SimpleNamespace(begin_update=lambda number: None)
    learning._staging, learning._timers = BatchStaging(torch.device("cpu")), Timers()
    learning.reuse, learning.algorithm = ONCE, SimpleNamespace(update=update)
    learning._account = FreshAccount(learning._session)
    layout = TrajectoryLayout(gradient_spec(()))
    batch = layout.begin(layout.allocate(1)[0], attempt=1, version=version, actor=0, grant=0, envs=range(1))
    batch.fields["valid"][...] = True
    with pytest.raises(error):
        learning.update([batch], 0, 1)
