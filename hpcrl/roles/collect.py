"""env.recv -> trajectory.write -> algorithm.act: filling one trajectory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.algorithms import Acting, Algorithm
from hpcrl.comm.ranks import Placement, share
from hpcrl.data.discounted import DiscountedReturns
from hpcrl.data.generators import generator_rows
from hpcrl.data.specs import DISCOUNTED_RETURN, PRIORITY
from hpcrl.data.trajectory import Trajectory
from hpcrl.envs import Resumable, Step, VectorEnv, make_vector_env, require_choices
from hpcrl.roles.env_state import EnvRows, env_state, env_values, restart_seed, restore_actions, saved_envs
from hpcrl.roles.session import Session, record_event
from hpcrl.storage.parts import Given
from hpcrl.storage.schema import TABLES


@dataclass(slots=True)
class _Group:
    env: VectorEnv
    columns: slice
    obs: npt.NDArray[Any]
    acting: Acting
    returns: DiscountedReturns | None
    """Only where the learners normalize by them."""
    indices: npt.NDArray[np.int64]
    """Of its environments, among those of the run."""
    exploration: npt.NDArray[np.float32] | None = None
    under_way: bool = False


class Collector:
    """Steps this rank's share of the environments. Local.

    The groups are stepped in turn: while the policy chooses for one, the engine may step the others.
    """

    def __init__(self, session: Session, placement: Placement, algorithm: Algorithm) -> None:
        config = session.config
        self.envs = share(config.env.num_envs, config.num_acting_ranks, placement.role_rank)
        self._actor = placement.role_rank
        self._num_envs = config.env.num_envs
        self._algorithm = algorithm
        self._gives_priorities = config.gives_priorities
        self._extra = [field.name for field in algorithm.extra_fields]
        self._rng = session.rng(placement, "actions")
        self._timers = session.timers
        self._record = session.record
        self._work = session.world.waiter.work
        self._groups = []
        for index in range(config.env.num_groups):
            columns = share(len(self.envs), config.env.num_groups, index)
            indices = range(self.envs.start + columns.start, self.envs.start + columns.stop)
            env, rows = self._begin(session, placement, indices)
            acting = Acting(algorithm, len(indices), rows.policy_state)
            returns = None
            if config.algorithm.normalize_returns:
                returns = DiscountedReturns(len(indices), config.algorithm.gamma, rows.discounted_return)
            place = slice(columns.start, columns.stop)
            self._groups.append(_Group(env, place, rows.obs, acting, returns, np.array(indices)))
        restore_actions(session, placement, self._rng)

    def collect(
        self, trajectory: Trajectory, version: int, cancelled: Callable[[], bool], env_steps: int = 0
    ) -> bool:
        """Fill every field of the trajectory's used columns; False when `cancelled()` came first.

        The trajectory belongs to the caller; obs[0] repeats the last observation of the one before. env_steps: of the
        whole run, as far as it is known.
        """
        fields = trajectory.fields
        unroll_length = len(fields["reward"])
        for group in self._groups:
            group.exploration = self._algorithm.exploration(group.indices, self._num_envs, env_steps)
            fields["obs"][0, group.columns] = group.obs
            if group.acting.state is not None:
                fields["initial_state"][0, group.columns] = group.acting.state
        for t in range(unroll_length):
            for group in self._groups:
                if t > 0:
                    self._receive(group, fields, t - 1, version)
                self._act(group, fields, t)
            if cancelled():
                return False
        for group in self._groups:
            self._receive(group, fields, unroll_length - 1, version)
            group.obs = fields["obs"][unroll_length, group.columns].copy()
        if self._gives_priorities:
            with self._timers("algorithm.first_priorities"):
                self._give_priorities(fields)
        return True

    def _give_priorities(self, fields: dict[str, npt.NDArray[Any]]) -> None:
        used = slice(0, len(self.envs))
        priority = fields[PRIORITY.name]
        known = {name: array[:, used] for name, array in fields.items() if array is not priority}
        priority[:, used] = self._algorithm.first_priorities(known)

    def settle(self) -> None:
        """Finish env_steps under way, of a trajectory that is given up; the environments go on from there."""
        for group in self._groups:
            if group.under_way:
                step = group.env.recv()
                group.obs = step.obs.copy()
                group.acting.restart(~step.valid)
                if group.returns is not None:
                    group.returns.step(step.reward, step.terminated | step.truncated)
                group.under_way = False
                self._work()

    def components(self) -> dict[str, Given]:
        """This rank's part of a checkpoint: between trajectories, or settled."""
        groups = []
        for group in self._groups:
            returns = None if group.returns is None else group.returns.carried
            groups.append(EnvRows(group.obs, env_state(group.env), group.acting.state, returns))
        return {
            "actions": {"state": generator_rows([self._rng])},
            "envs": env_values(self.envs.start, groups),
        }

    def close(self) -> None:
        """Finish env_steps under way and free the environments."""
        self.settle()
        for group in self._groups:
            group.env.close()

    def _begin(self, session: Session, placement: Placement, indices: range) -> tuple[VectorEnv, EnvRows]:
        """Environments as they were saved, with what goes on with them, or at the start of an episode."""
        config, saved = session.config, session.cuts.saved
        if saved is None:
            env = make_vector_env(config.env, indices, config.seed)
            return env, _first_rows(env)
        found = saved_envs(saved, placement.role, config.env.num_envs, indices)
        seed = config.seed if found is not None else restart_seed(config.seed, saved.update)
        env = make_vector_env(config.env, indices, seed)
        if found is not None and isinstance(env, Resumable):
            env.load_state(found.state)
            return env, found
        text = f"environments {indices.start} to {indices.stop - 1} had no state in the checkpoint"
        record_event(session, placement, "episode_restarted", text, len(indices))
        return env, _first_rows(env)

    def _act(self, group: _Group, fields: dict[str, npt.NDArray[Any]], t: int) -> None:
        timers = self._timers
        timers.begin("algorithm.act")
        chosen = group.acting.act(fields["obs"][t, group.columns], self._rng, exploration=group.exploration)
        action = self._algorithm.to_env(chosen["action"])
        timers.then("env.send")
        group.env.send(action)
        group.under_way = True
        timers.then("trajectory.write")
        fields["action"][t, group.columns] = chosen["action"]
        for name in self._extra:
            fields[name][t, group.columns] = chosen[name]
        timers.end()

    def _receive(self, group: _Group, fields: dict[str, npt.NDArray[Any]], t: int, version: int) -> None:
        timers = self._timers
        timers.begin("env.recv")
        step = group.env.recv()
        group.acting.restart(~step.valid)
        group.under_way = False
        self._work()
        timers.then("trajectory.write")
        fields["obs"][t + 1, group.columns] = step.obs
        for name in ("reward", "terminated", "truncated", "valid"):
            fields[name][t, group.columns] = getattr(step, name)
        require_choices(group.env.spec, step.obs, ~(step.terminated | step.truncated))
        if group.returns is not None:
            returns = group.returns.step(step.reward, step.terminated | step.truncated)
            fields[DISCOUNTED_RETURN.name][t, group.columns] = returns
        timers.end()
        if step.episode_length.any():
            self._log_episodes(step, self.envs.start + group.columns.start, version)

    def _log_episodes(self, step: Step, first_env: int, version: int) -> None:
        ended = np.flatnonzero(step.episode_length)
        rows = TABLES["episodes"].rows(
            len(ended),
            env_index=first_env + ended,
            episode_return=step.episode_return[ended],
            episode_length=step.episode_length[ended],
            truncated=step.truncated[ended],
            parameter_version=version,
            actor=self._actor,
        )
        self._record("episodes", rows)


def _first_rows(env: VectorEnv) -> EnvRows:
    obs = env.reset().copy()
    require_choices(env.spec, obs, np.ones(env.num_envs, bool))
    return EnvRows(obs, {})
