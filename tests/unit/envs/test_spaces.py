"""Nested observation spaces, action masks and choices of several parts (P50, P51)."""

import copy
import random

import gymnasium
import numpy as np
import pytest
from envs_for_tests import MaskedEnv, SpacesEnv
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hpcrl.config import ConfigError, EnvConfig
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec, Part
from hpcrl.envs import make_env_spec, make_vector_env, require_choices, run_episodes
from hpcrl.envs.from_gymnasium import adapt, make_from_factory
from hpcrl.envs.spaces import SpaceAdapter
from hpcrl.testing import EnvCheckError, check_env
from hpcrl.testing.recording import allow

BOX = spaces.Box(-1, 1, (2, 3), np.float32)
BYTES = spaces.Box(0, 255, (2, 4, 4), np.uint8)
TWO = spaces.Discrete(2)
MASK = spaces.Box(0, 1, (2,), np.int8)
MASKED = "envs_for_tests:make_masked"


def spec_of(observation, action=TWO):
    return SpaceAdapter("x", observation, action, None).spec


def random_space(rng, depth=3):
    """Any nested space; Dict and Tuple at least at the top."""
    kinds = [
        lambda: spaces.Box(-1, 1, tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 2))), np.float64),
        lambda: spaces.Discrete(rng.randint(1, 4), start=rng.randint(-2, 2)),
        lambda: spaces.MultiDiscrete([rng.randint(1, 3) for _ in range(rng.randint(1, 3))]),
        lambda: spaces.MultiBinary(rng.randint(1, 3)),
    ]
    nested = [
        lambda: spaces.Dict({f"k{i}": random_space(rng, depth - 1) for i in range(rng.randint(1, 3))}),
        lambda: spaces.Tuple([random_space(rng, depth - 1) for _ in range(rng.randint(1, 3))]),
    ]
    return rng.choice(nested if depth == 3 else kinds + nested if depth else kinds)()


def expected_numbers(space, value):
    """The slow way, one observation at a time."""
    if isinstance(space, spaces.Dict):
        return [n for key in sorted(space.spaces) for n in expected_numbers(space[key], value[key])]
    if isinstance(space, spaces.Tuple):
        return [n for part, one in zip(space, value, strict=True) for n in expected_numbers(part, one)]
    if isinstance(space, spaces.Discrete):
        return [float(i == value - space.start) for i in range(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [float(i == v) for v, n in zip(value, space.nvec, strict=True) for i in range(n)]
    return [float(np.float32(number)) for number in np.ravel(value)]


@pytest.mark.parametrize("case", range(12))
def test_nested_observations_are_flattened_in_one_order(case):
    space = random_space(random.Random(case))
    space.seed(case)
    adapter = SpaceAdapter("x", space, TWO, None)
    values = [space.sample() for _ in range(3)]
    batch = gymnasium.vector.utils.concatenate(
        space, values, gymnasium.vector.utils.create_empty_array(space, 3)
    )
    encoded = adapter.encode(batch)
    assert encoded.dtype == "float32"
    expected = [expected_numbers(space, value) for value in values]
    assert encoded.reshape(3, -1).tolist() == expected
    assert encoded.shape[1:] == adapter.spec.observation.shape
    for value, row in zip(values, encoded, strict=True):
        np.testing.assert_array_equal(adapter.encode_one(value), row)
    parts = adapter.spec.observation.parts
    assert sum(int(np.prod(part.shape)) for part in parts) == (encoded[0].size if parts else 0)


def test_the_order_of_keys_does_not_matter_and_parts_are_named():
    one = {"b": TWO, "a": spaces.Dict({"y": spaces.Tuple([BOX, BOX]), "x": spaces.MultiBinary(2)})}
    other = {"a": spaces.Dict({"x": spaces.MultiBinary(2), "y": spaces.Tuple([BOX, BOX])}), "b": TWO}
    specs = [spec_of(spaces.Dict(entries)) for entries in (one, other)]
    assert specs[0] == specs[1]
    expected = (Part("a/x", (2,)), Part("a/y/0", (2, 3)), Part("a/y/1", (2, 3)), Part("b", (2,)))
    assert specs[0].observation == ArraySpec(shape=(16,), dtype="float32", parts=expected)


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (spaces.Dict({"only": BYTES}), (2, 4, 4), "uint8"),
        (spaces.Tuple([BYTES, BYTES]), (64,), "uint8"),
        (spaces.Tuple([BYTES, TWO]), (34,), "float32"),
        (spaces.MultiDiscrete([2, 3], start=[1, 1]), (5,), "float32"),
        (spaces.MultiBinary([2, 2]), (2, 2), "float32"),
    ],
    ids=str,
)
def test_shapes_and_types(space, shape, dtype):
    assert spec_of(space).features == ArraySpec(shape=shape, dtype=dtype, parts=spec_of(space).features.parts)
    report = check_env(lambda num_envs, seeds: adapt(vector(space, num_envs), seeds=seeds), steps=20)
    assert report.spec.observation.shape == shape


def vector(space, num_envs):
    return SyncVectorEnv([lambda: SpacesEnv(copy.deepcopy(space), TWO)] * num_envs)


@pytest.mark.parametrize("leaf", [spaces.Text(4), spaces.Sequence(TWO), spaces.Box(0, 1, (0,))], ids=str)
def test_what_is_not_supported_is_named_by_its_place(leaf):
    space = spaces.Dict({"arm": spaces.Tuple([BOX, spaces.Dict({"note": leaf})])})
    with pytest.raises(ConfigError) as error:
        make_from_factory("my-env", lambda: SpacesEnv(space, TWO), [0], "sync")
    assert f"env.id='my-env' has the observation space {leaf} at 'arm/1/note'" in str(error.value)


@pytest.mark.parametrize(
    ("image", "mask"),
    [(BYTES, MASK), (BOX, MASK), (BYTES, spaces.MultiBinary(2)), (BYTES, spaces.Box(0, 1, (2,), bool))],
    ids=str,
)
def test_a_mask_comes_last_and_leaves_its_neighbor_its_shape_and_type(image, mask):
    space = spaces.Dict({"action_mask": mask, "image": image})
    adapter = SpaceAdapter("x", space, TWO, None)
    size = int(np.prod(image.shape))
    assert adapter.spec.masked == ArraySpec(shape=image.shape, dtype=str(image.dtype))
    assert adapter.spec.observation == ArraySpec(shape=(size + 2,), dtype=str(image.dtype))
    assert adapter.spec.mask_size == 2
    seen = np.stack([image.sample(), image.sample()])
    encoded = adapter.encode({"image": seen, "action_mask": np.array([[1, 0], [0, 1]], mask.dtype)})
    assert encoded.dtype == image.dtype
    np.testing.assert_array_equal(encoded[:, :-2].reshape(seen.shape), seen)
    assert encoded[:, -2:].tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("mask", "action"),
    [
        (spaces.Box(0, 1, (3,), np.int8), TWO),
        (spaces.Box(0, 2, (2,), np.int8), TWO),
        (spaces.Box(0, 1, (2,), np.float32), TWO),
        (spaces.Text(2), TWO),
        (MASK, spaces.Box(-1, 1, (2,))),
    ],
    ids=str,
)
def test_what_cannot_be_a_mask_is_refused(mask, action):
    with pytest.raises(ConfigError, match="action_mask"):
        spec_of(spaces.Dict({"action_mask": mask, "see": BOX}), action)


def test_only_a_mask_is_nothing_to_see():
    with pytest.raises(ConfigError, match="observes nothing"):
        spec_of(spaces.Dict({"action_mask": MASK}))


def test_a_deeper_entry_of_that_name_is_an_observation_like_others():
    spec = spec_of(spaces.Dict({"other": spaces.Dict({"action_mask": MASK})}))
    assert spec.masked is None and spec.observation.shape == (2,)


def masked_config(**kwargs):
    return EnvConfig(id=MASKED, engine="custom", kwargs=kwargs, mask_from_info=kwargs.get("in_info", False))


@pytest.mark.parametrize("in_info", [False, True])
def test_masks_travel_with_their_observations(in_info):
    """The environment refuses what its last mask did not allow; so both are of the same env_step."""
    env = make_vector_env(masked_config(in_info=in_info), range(3), 0)
    assert env.spec.masked.shape == (5,) and env.spec.mask_size == 5
    rng = np.random.default_rng(0)
    obs = env.reset()
    for _ in range(30):
        pressed = allow(env.spec, obs, rng.integers(0, [3, 2], (3, 2)))
        env.send(pressed)
        step = env.recv()
        obs = step.obs.copy()
        for row in range(3):
            expected = np.full(5, not step.terminated[row])
            if step.valid[row]:
                expected[[pressed[row, 0], 3 + pressed[row, 1]]] = False
            assert obs[row, -5:].tolist() == expected.tolist()
    env.close()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_nested_observations_in_other_autoreset_modes(mode):
    def make(num_envs, seeds):
        space = spaces.Dict({"a": BOX, "b": TWO})
        inner = SyncVectorEnv([lambda: SpacesEnv(space, TWO)] * num_envs, autoreset_mode=mode)
        return adapt(inner, seeds=seeds, env_id="nested")

    env = make(2, [0, 1])
    obs = env.reset()
    for _ in range(25):
        assert obs.shape == (2, 8) and (obs[:, 6:].sum(axis=1) == 1).all()
        env.send(np.zeros(2, np.int64))
        obs = env.recv().obs


def test_a_mask_that_allows_nothing_is_an_error_that_names_the_environment():
    env = make_vector_env(masked_config(stuck_at=2), range(2), 0)

    def act(obs, begins):
        return allow(env.spec, obs, np.zeros((2, 2), np.int64))

    with pytest.raises(RuntimeError, match=rf"env\.id='{MASKED}'.*row 0 allows no choice of part 0"):
        run_episodes(env, act, 10)
    env.close()
    with pytest.raises(EnvCheckError, match=r"runs: .*allows no choice"):
        check_env(MASKED, steps=20, kwargs={"stuck_at": 2})


def test_nothing_need_be_allowed_after_an_end():
    spec = EnvSpec(
        id="x",
        observation=ArraySpec(shape=(3,), dtype="float32"),
        action=ActionSpec(kind="discrete", size=2),
        masked=ArraySpec(shape=(1,), dtype="float32"),
    )
    obs = np.array([[9, 0, 0], [9, 0, 1]], np.float32)
    require_choices(spec, obs, np.array([False, True]))
    with pytest.raises(RuntimeError, match=r"row 0 allows no choice, though"):
        require_choices(spec, obs, np.array([True, True]))
    assert all(episode.length == 4 for episode in run_masked())
    assert check_env(MASKED, steps=30).errors == ()


def run_masked():
    env = make_vector_env(masked_config(), range(2), 0)
    return run_episodes(env, lambda obs, begins: allow(env.spec, obs, np.zeros((2, 2), np.int64)), 100)


def test_masks_from_info_are_for_actions_that_have_choices_and_engines_that_have_info():
    with pytest.raises(ConfigError, match=r"env\.mask_from_info=true.*no choices to mask"):
        make_env_spec(
            EnvConfig(id="envs_for_tests:make_with_box_actions", engine="custom", mask_from_info=True)
        )
    with pytest.raises(ConfigError, match=r"env\.mask_from_info=true.*vector environment"):
        make_env_spec(
            EnvConfig(id="envs_for_tests:make_gymnasium_vector", engine="custom", mask_from_info=True)
        )
    with pytest.raises(ConfigError, match=r"env\.mask_from_info=true is not there with env\.engine=toy"):
        EnvConfig.parse({"id": "chain", "engine": "toy", "mask_from_info": True})
    with pytest.raises(RuntimeError, match=r"gives 0 numbers as info\['action_mask'\].* need 2"):
        make_vector_env(EnvConfig(id="CartPole-v1", mask_from_info=True), range(1), 0).reset()


def test_the_state_of_masked_environments_can_be_saved():
    env = MaskedEnv(in_info=True)
    wrapped = make_from_factory("x", lambda: env, [0], "sync", mask_from_info=True)
    wrapped.reset()
    state = wrapped.state()
    assert state is not None
    wrapped.send(np.zeros((1, 2), np.int64))
    mask = wrapped.recv().obs[:, -5:].copy()
    again = make_from_factory("x", lambda: MaskedEnv(in_info=True), [0], "sync", mask_from_info=True)
    again.load_state(state)
    again.send(np.zeros((1, 2), np.int64))
    np.testing.assert_array_equal(again.recv().obs[:, -5:], mask)


def test_envpool_observes_a_dict():
    env = make_vector_env(EnvConfig(id="CheetahRun-v1", engine="envpool"), range(2), 0)
    names = [part.name for part in env.spec.observation.parts]
    assert names == sorted(names) and len(names) > 1
    obs = env.reset().copy()
    env.send(np.zeros((2, env.spec.action.size), np.float32))
    step = env.recv()
    assert step.obs.shape == obs.shape == (2, *env.spec.observation.shape)
    assert not np.array_equal(step.obs, obs)
    env.close()
