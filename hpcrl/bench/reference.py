"""What people run today: a single-process PPO loop on EnvPool in the manner of CleanRL's scripts.

It is the fair baseline of `hpcrl bench`, so it shares nothing with the rest of hpcrl: torch modules for
policy and value, torch.distributions for sampling, EnvPool with its default threads. Like those scripts it
trains on the reset step after an episode's end and does not tell truncation from termination.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from hpcrl.bench.engines import make_envpool

LEARNING_RATE = 2.5e-4
ADAM_EPSILON = 1e-5
MAX_GRAD_NORM = 0.5
GAMMA = 0.99
GAE_LAMBDA = 0.95
CLIP_EPSILON = 0.2
ENTROPY_COEFFICIENT = 0.01
VALUE_COEFFICIENT = 0.5

Network = Literal["mlp", "nature_cnn"]


@dataclass(frozen=True, slots=True)
class Work:
    """How much there is to do per update; the defaults are the scripts'."""

    num_envs: int = 8
    unroll_length: int = 128
    epochs: int = 4
    num_minibatches: int = 4
    hidden_sizes: Sequence[int] = (64, 64)
    """Of the two torsos for vectors; for images of the layers after the convolutions."""


@dataclass(slots=True)
class Storage:
    """One rollout, float32; obs, ended and value have T + 1 rows, of which the last one begins the next."""

    obs: Tensor
    """[T+1, B, *obs]"""
    action: Tensor
    """[T, B] int64 or [T, B, size]"""
    log_prob: Tensor
    reward: Tensor
    ended: Tensor
    value: Tensor


class Episodes:
    """Raw returns of finished episodes, in order of their ends."""

    def __init__(self, num_envs: int) -> None:
        self.returns: list[float] = []
        self._running = np.zeros(num_envs)

    def add(self, reward: npt.NDArray[Any], ended: npt.NDArray[Any]) -> None:
        """Count one env_step of every environment: raw reward [B], ended [B] bool."""
        self._running += reward
        self.returns.extend(self._running[ended].tolist())
        self._running[ended] = 0.0


class Agent(nn.Module):
    """Policy and value: separate tanh torsos for vectors, one Nature-CNN torso for images."""

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        num_actions: int,
        continuous: bool,
        network: Network,
        hidden_sizes: Sequence[int],
    ) -> None:
        super().__init__()
        self.image = network == "nature_cnn"
        if self.image:
            self.actor_torso = self.critic_torso = _convolutions(obs_shape, hidden_sizes)
        else:
            size = int(np.prod(obs_shape))
            self.actor_torso = nn.Sequential(*_hidden(size, hidden_sizes, nn.Tanh))
            self.critic_torso = nn.Sequential(*_hidden(size, hidden_sizes, nn.Tanh))
        width = hidden_sizes[-1]
        self.actor = _layer(nn.Linear(width, num_actions), 0.01)
        self.critic = _layer(nn.Linear(width, 1), 1.0)
        self.log_std = nn.Parameter(torch.zeros(num_actions)) if continuous else None

    def value(self, obs: Tensor) -> Tensor:
        """Values [N] float32 of obs [N, *obs]."""
        output: Tensor = self.critic(self.critic_torso(self._scaled(obs))).flatten()
        return output

    def action_and_value(
        self, obs: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return action (sampled unless given), log probability, entropy and value, each [N, ...]."""
        obs = self._scaled(obs)
        hidden = self.actor_torso(obs)
        value = self.critic(hidden if self.image else self.critic_torso(obs)).flatten()
        output = self.actor(hidden)
        policy: Any  # torch.distributions carries no types
        if self.log_std is None:
            policy = Categorical(logits=output)
        else:
            policy = Independent(Normal(output, self.log_std.expand_as(output).exp()), 1)
        if action is None:
            action = policy.sample()
        return action, policy.log_prob(action), policy.entropy(), value

    def greedy(self, obs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Most likely actions [N] int64, or means [N, size] float32, of obs [N, *obs]."""
        with torch.no_grad():
            output = self.actor(self.actor_torso(self._scaled(torch.as_tensor(obs))))
        chosen: npt.NDArray[Any] = (output if self.log_std is not None else output.argmax(-1)).numpy()
        return chosen

    def _scaled(self, obs: Tensor) -> Tensor:
        return obs / 255.0 if self.image else obs


def run_reference(
    env_id: str,
    env_steps: int,
    seed: int,
    network: Network = "mlp",
    num_threads: int | None = None,
    work: Mapping[str, Any] | None = None,
    watch: Callable[[Agent, int], bool] | None = None,
) -> dict[str, Any]:
    """Train for `env_steps` env_steps (rounded up to whole updates, at least two) and say how fast it went.

    Args:
        env_id: An EnvPool environment with discrete or continuous actions.
        env_steps: Budget over all environments.
        seed: Of network, sampling and environments.
        network: `mlp` for vectors, `nature_cnn` for uint8 images.
        num_threads: Of torch; None leaves its default.
        work: The fields of `Work` that are not its defaults.
        watch: Gets the agent and the env_steps so far, before the first update and after each; True ends the training.

    Returns:
        `env_steps_per_s` and `wall_s` of acting and learning together, without the first update (warm-up);
        `env_steps` in all; `episode_returns`, raw, in order of their ends.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    torch.manual_seed(seed)
    rng, todo = np.random.default_rng(seed), Work(**(work or {}))
    options = {"episodic_life": True, "reward_clip": True} if network == "nature_cnn" else {}
    envs = make_envpool(env_id, todo.num_envs, seed=seed, **options)
    continuous = not hasattr(envs.action_space, "n")
    num_actions = envs.action_space.shape[0] if continuous else int(envs.action_space.n)
    agent = Agent(envs.observation_space.shape, num_actions, continuous, network, todo.hidden_sizes)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=ADAM_EPSILON)

    storage = _storage(todo, envs.observation_space.shape, continuous, num_actions)
    storage.obs[-1] = torch.as_tensor(envs.reset()[0])
    episodes = Episodes(todo.num_envs)
    per_update = todo.num_envs * todo.unroll_length
    num_updates = max(2, -(-env_steps // per_update))
    watch = watch or (lambda agent, env_steps: False)
    watch(agent, 0)
    start = time.perf_counter()
    for update in range(num_updates):
        if update == 1:
            start = time.perf_counter()
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1.0 - update / num_updates)
        _rollout(envs, agent, storage, episodes)
        _learn(agent, optimizer, storage, rng, todo)
        if watch(agent, (update + 1) * per_update):
            break
    wall_s = time.perf_counter() - start
    envs.close()
    return {
        "env_id": env_id,
        "env_steps": (update + 1) * per_update,
        "env_steps_per_s": update * per_update / wall_s,
        "wall_s": wall_s,
        "num_threads": torch.get_num_threads(),
        "episode_returns": episodes.returns,
    }


def _rollout(envs: Any, agent: Agent, storage: Storage, episodes: Episodes) -> None:
    low, high = getattr(envs.action_space, "low", None), getattr(envs.action_space, "high", None)
    storage.obs[0], storage.ended[0] = storage.obs[-1], storage.ended[-1]
    for t in range(len(storage.reward)):
        with torch.no_grad():
            action, log_prob, _, value = agent.action_and_value(storage.obs[t])
        storage.action[t], storage.log_prob[t], storage.value[t] = action, log_prob, value
        sent = action.numpy()
        if agent.log_std is not None:
            sent = np.clip(sent, low, high).astype(np.float64)
        obs, reward, terminated, truncated, info = envs.step(sent)
        ended = np.logical_or(terminated, truncated)
        storage.reward[t] = torch.as_tensor(reward)
        storage.obs[t + 1], storage.ended[t + 1] = torch.as_tensor(obs), torch.as_tensor(ended)
        # With lives the engine reports an end per life; a game is over when its own flag says so.
        over = np.logical_or(info.get("terminated", terminated), truncated)
        episodes.add(info.get("reward", reward), over)


def _learn(
    agent: Agent, optimizer: torch.optim.Adam, storage: Storage, rng: np.random.Generator, work: Work
) -> None:
    with torch.no_grad():
        storage.value[-1] = agent.value(storage.obs[-1])
        advantages = _advantages(storage)
        returns = advantages + storage.value[:-1]
    obs, action = storage.obs[:-1].flatten(0, 1), storage.action.flatten(0, 1)
    old_log_prob, old_value = storage.log_prob.flatten(), storage.value[:-1].flatten()
    advantages, returns = advantages.flatten(), returns.flatten()
    indices = np.arange(len(returns))
    size = len(indices) // work.num_minibatches
    for _ in range(work.epochs):
        rng.shuffle(indices)
        for begin in range(0, len(indices), size):
            chosen = indices[begin : begin + size]
            _, log_prob, entropy, value = agent.action_and_value(obs[chosen], action[chosen])
            ratio = (log_prob - old_log_prob[chosen]).exp()
            advantage = advantages[chosen]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy_loss = torch.max(
                -advantage * ratio, -advantage * ratio.clamp(1 - CLIP_EPSILON, 1 + CLIP_EPSILON)
            )
            target, behavior = returns[chosen], old_value[chosen]
            clipped = behavior + (value - behavior).clamp(-CLIP_EPSILON, CLIP_EPSILON)
            value_loss = 0.5 * torch.max((value - target) ** 2, (clipped - target) ** 2)
            loss = (
                policy_loss.mean()
                - ENTROPY_COEFFICIENT * entropy.mean()
                + VALUE_COEFFICIENT * value_loss.mean()
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
            optimizer.step()


def _advantages(storage: Storage) -> Tensor:
    """GAE [T, B]: A_t = delta_t + gamma * lambda * (1 - ended_{t+1}) * A_{t+1}."""
    advantages = torch.zeros_like(storage.reward)
    last = torch.zeros_like(storage.reward[0])
    for t in reversed(range(len(storage.reward))):
        going_on = 1.0 - storage.ended[t + 1]
        delta = storage.reward[t] + GAMMA * storage.value[t + 1] * going_on - storage.value[t]
        advantages[t] = last = delta + GAMMA * GAE_LAMBDA * going_on * last
    return advantages


def _storage(work: Work, obs_shape: tuple[int, ...], continuous: bool, num_actions: int) -> Storage:
    rows, more = (work.unroll_length, work.num_envs), (work.unroll_length + 1, work.num_envs)
    return Storage(
        obs=torch.zeros(more + obs_shape),
        action=torch.zeros(*rows, num_actions) if continuous else torch.zeros(rows, dtype=torch.int64),
        log_prob=torch.zeros(rows),
        reward=torch.zeros(rows),
        ended=torch.zeros(more),
        value=torch.zeros(more),
    )


def _layer(layer: nn.Linear | nn.Conv2d, gain: float = 2**0.5) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _hidden(width: int, sizes: Sequence[int], activation: type[nn.Module]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for size in sizes:
        layers += [_layer(nn.Linear(width, size)), activation()]
        width = size
    return layers


def _convolutions(obs_shape: tuple[int, ...], hidden_sizes: Sequence[int]) -> nn.Sequential:
    return nn.Sequential(
        _layer(nn.Conv2d(obs_shape[0], 32, 8, stride=4)),
        nn.ReLU(),
        _layer(nn.Conv2d(32, 64, 4, stride=2)),
        nn.ReLU(),
        _layer(nn.Conv2d(64, 64, 3, stride=1)),
        nn.ReLU(),
        nn.Flatten(),
        *_hidden(64 * 7 * 7, hidden_sizes, nn.ReLU),
    )
