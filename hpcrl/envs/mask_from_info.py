"""Action masks that a gymnasium environment gives in its info, made part of its observations."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from hpcrl.envs.spaces import MASK_KEY, mask_size


class MaskFromInfo(gymnasium.Wrapper[dict[str, Any], Any, Any, Any]):
    """Observes {"observation": what the environment observes, "action_mask": info["action_mask"]}.

    So the mask travels with the observation it belongs to. Raises ConfigError where the action has no choices.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], env_id: str) -> None:
        super().__init__(env)
        mask = spaces.MultiBinary(mask_size(env_id, env.action_space))
        self.observation_space = spaces.Dict({"observation": env.observation_space, MASK_KEY: mask})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """See gymnasium.Env."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._observed(obs, info), info

    def step(self, action: Any) -> tuple[dict[str, Any], SupportsFloat, bool, bool, dict[str, Any]]:
        """See gymnasium.Env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._observed(obs, info), reward, terminated, truncated, info

    def _observed(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        size = int(self.observation_space[MASK_KEY].n)  # type: ignore[index]
        mask = np.ravel(info.get(MASK_KEY, ()))
        if len(mask) != size:
            raise RuntimeError(
                f"env.mask_from_info=true: {self.env} gives {len(mask)} numbers as info['{MASK_KEY}'], where its "
                f"actions need {size}; use env.mask_from_info=false"
            )
        return {"observation": obs, MASK_KEY: (mask != 0).astype(np.int8)}
