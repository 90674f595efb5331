"""What an actor does with its trajectories where it sends gradients instead of them."""

from __future__ import annotations

import torch

from hpcrl.algorithms import Algorithm, stored_spec
from hpcrl.comm.ranks import share
from hpcrl.data.trajectory import Trajectory, TrajectoryLayout
from hpcrl.roles.session import Session


class Gradients:
    """The one trajectory an actor is at, and its gradient under the parameters it was collected with. Local."""

    def __init__(self, session: Session, algorithm: Algorithm) -> None:
        config = session.config
        columns = len(share(config.env.num_envs, config.num_acting_ranks, 0))
        self._layout = TrajectoryLayout(stored_spec(config, session.env_spec, algorithm, columns))
        self._memory = self._layout.allocate(1)[0]
        self._attempt, self._algorithm = session.world.attempt, algorithm

    def begin(self, envs: range, version: int) -> Trajectory:
        """A trajectory to collect, over the one before."""
        return self._layout.begin(
            self._memory, attempt=self._attempt, version=version, actor=0, grant=0, envs=envs
        )

    def compute(self, collected: Trajectory, sent: Trajectory) -> None:
        """Fill `sent`, begun under the same version, with what the learner needs of `collected`."""
        tensors = {name: torch.from_numpy(array) for name, array in collected.fields.items()}
        for name, values in self._algorithm.gradient(tensors).items():
            sent.fields[name][0, 0] = values
        valid = collected.fields["valid"]
        sent.fields["valid"][...] = True
        sent.fields["env_steps"][...] = valid.sum()
        sent.fields["slots"][...] = valid.size
