import numpy as np
import pytest

from hpcrl.algorithms import make_algorithm
from hpcrl.bench import ceilings
from hpcrl.bench.ceilings import MEASUREMENTS, Rollout, random_actions
from hpcrl.config import EnvConfig, ImpactConfig, ImpalaConfig, ModelConfig, PPOConfig, RanksConfig, RunConfig
from hpcrl.data.specs import ActionSpec


def run_config(engine="envpool", env_id="CartPole-v1", num_envs=3, algorithm=None, **other):
    return RunConfig(
        name="x",
        env=EnvConfig(id=env_id, engine=engine, num_envs=num_envs),
        algorithm=algorithm or ImpalaConfig(unroll_length=5),
        **other,
    )


@pytest.mark.parametrize("name", MEASUREMENTS)
@pytest.mark.parametrize(
    "config",
    [
        run_config(),
        run_config("gymnasium", "Pendulum-v1", num_envs=1, algorithm=PPOConfig(unroll_length=8)),
    ],
    ids=["discrete", "continuous"],
)
def test_every_measurement_measures(name, config):
    result = getattr(ceilings, name)(config.to_dict(), 0.02)
    assert result["calls"] >= 1
    assert result["wall_s"] >= 0.02
    assert result["env_steps_per_s"] > 0


def test_toy_environment_has_no_engine_of_its_own():
    assert ceilings.environment_engine(run_config("toy", "counting").to_dict(), 0.01) == {}
    assert ceilings.environment_adapter(run_config("toy", "counting").to_dict(), 0.01)["calls"] >= 1


def per_call(name, config):
    result = getattr(ceilings, name)(config.to_dict(), 0.02)
    return result["env_steps_per_s"] * result["wall_s"] / result["calls"]


def test_a_call_counts_the_env_steps_of_one_rank():
    config = run_config(num_envs=6, ranks=RanksConfig(actors=2))
    assert per_call("environment_adapter", config) == pytest.approx(3)
    assert per_call("environment_and_policy", config) == pytest.approx(3 * 5)


@pytest.mark.parametrize(("learners", "columns"), [(1, 6), (2, 3)])
def test_an_update_counts_one_learners_share(learners, columns):
    config = run_config(num_envs=6, ranks=RanksConfig(actors=2, learners=learners))
    assert per_call("updates", config) == pytest.approx(5 * columns)


def test_rollout_goes_on_where_it_stopped():
    config = run_config("toy", "counting", num_envs=2)
    rollout = Rollout(config)
    rollout.fill()
    last = rollout.fields["obs"][-1].copy()
    rollout.fill()
    np.testing.assert_array_equal(rollout.fields["obs"][0], last)


def test_rollout_writes_every_field_of_the_trajectory():
    rollout = Rollout(run_config())
    for name, array in rollout.fields.items():
        array[...] = 77 if array.dtype != bool else name != "valid"
    rollout.fields["obs"][-1] = 0
    rollout.fill()
    algorithm = make_algorithm(run_config(), rollout.env.spec)
    assert {"obs", "action", "reward", "terminated", "truncated", "valid"} < set(rollout.fields)
    assert {field.name for field in algorithm.extra_fields} < set(rollout.fields)
    for name, array in rollout.fields.items():
        if array.dtype != bool:
            assert not (array == 77).any(), name
    # No pole falls within five env_steps.
    assert rollout.fields["valid"].all()
    assert not rollout.fields["terminated"].any()
    assert not rollout.fields["truncated"].any()


def test_random_actions_stay_in_bounds():
    discrete = random_actions(ActionSpec(kind="discrete", size=3), 100)
    assert set(discrete) == {0, 1, 2}
    spec = ActionSpec(kind="continuous", size=2, low=(-0.5, -np.inf), high=(0.25, np.inf))
    continuous = random_actions(spec, 100)
    assert continuous.shape == (100, 2)
    assert continuous.dtype == np.float32
    assert (np.abs(continuous) <= 1).all()
    assert continuous[:, 0].min() >= -0.5
    assert continuous[:, 0].max() <= 0.25


def test_what_a_recipe_normalizes_by_is_counted():
    algorithm = PPOConfig(unroll_length=8, normalize_returns=True)
    rollout = Rollout(run_config(algorithm=algorithm, model=ModelConfig(normalize_observations=True)))
    for _ in range(2):
        rollout.fill()
        rollout.learn(rollout.fields, 0.0)
    moments = rollout.algorithm.normalizers.moments
    assert {name: one.count for name, one in moments.items()} == {
        "obs": 2 * 8 * 3,
        "discounted_return": 2 * 8 * 3,
    }
    assert (
        rollout.fields["discounted_return"].max() > 8
    )  # over the end of the first trajectory, 1 for each env_step


def test_a_batch_is_trained_on_as_often_as_the_recipe_says(monkeypatch):
    algorithm = ImpactConfig(unroll_length=8, batch_uses=3)
    rollout = Rollout(run_config(algorithm=algorithm, scheme="synchronous", lag={"max_lag": 2}))
    updates = []
    monkeypatch.setattr(rollout.algorithm, "observe", lambda batch, reducer: updates.append("observe"))
    update = rollout.algorithm.update

    def noted(batch, reducer, progress):
        updates.append(batch.update)
        return update(batch, reducer, progress)

    monkeypatch.setattr(rollout.algorithm, "update", noted)
    rollout.fill()
    rollout.learn(rollout.fields, 0.0)
    assert updates == [0, "observe", 1, 2]
