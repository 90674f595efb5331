import json

import pytest
from pydantic import ValidationError

from hpcrl.config import (
    A2CConfig,
    A3CConfig,
    ActionValueConfig,
    ActorCriticConfig,
    AlgorithmConfig,
    ApexConfig,
    BudgetConfig,
    CheckpointConfig,
    CommConfig,
    ComponentConfig,
    Config,
    ContinuousConfig,
    DDPGConfig,
    DecoupledPPOConfig,
    DQNConfig,
    EnvConfig,
    EvaluationConfig,
    FaultsConfig,
    ImpactConfig,
    ImpalaConfig,
    LadderConfig,
    LagConfig,
    LogConfig,
    ModelConfig,
    OffPolicyConfig,
    PlainGradientConfig,
    PPOConfig,
    ProfileConfig,
    R2D2Config,
    RanksConfig,
    ReductionConfig,
    ReplayConfig,
    RunConfig,
    SACConfig,
    SiteConfig,
    StorageConfig,
    SurrogateConfig,
    TD3Config,
)
from tests.unit.config.support import SECTION_NAMES, message

# every section with every field away from its default
OF_ALL = {
    "unroll_length": 5,
    "batch_trajectories": 3,
    "gamma": 0.95,
    "learning_rate": 7e-4,
    "anneal_learning_rate": True,
    "adam_epsilon": 1e-7,
    "max_grad_norm": 2.0,
    "entropy_coefficient": 0.02,
    "value_coefficient": 0.25,
    "reward_clip": 5.0,
    "reward_scale": 0.25,
    "normalized_reward_clip": 5.0,
    "max_nonfinite_updates": 2,
    "learning_rate_scaling": "sqrt",
    "reference_batch": 512,
    "warmup_updates": 10,
    "rows_per_pass": 1000,
    "gae_lambda": 0.8,
}
OF_SURROGATES = OF_ALL | {
    "clip_epsilon": 0.3,
    "value_clip": 0.4,
    "dual_clip": 3.0,
    "epochs": 2,
    "num_minibatches": 2,
    "normalize_advantages": False,
    "target_kl": 0.02,
}
OF_REPLAY = {name: OF_ALL[name] for name in OF_ALL if name in OffPolicyConfig.model_fields} | {
    "batch_size": 96,
    "target_update_updates": 7,
    "target_tau": 0.5,
}
OF_VALUES = OF_REPLAY | {"double": False, "dueling": False, "n_step": 2}
OF_LADDER = OF_VALUES | {"epsilon_base": 0.5, "epsilon_exponent": 3.0}
OF_CONTINUOUS = OF_REPLAY | {"policy_learning_rate": 1e-3, "num_critics": 3, "random_env_steps": 10}
OF_TD3 = OF_CONTINUOUS | {
    "policy_delay": 4,
    "exploration_noise": 0.3,
    "target_noise": 0.1,
    "target_noise_clip": 0.4,
}
SECTIONS = [
    EnvConfig(
        id="Pong-v5",
        engine="envpool",
        num_envs=12,
        num_groups=2,
        vectorization="async",
        num_threads=3,
        kwargs={"stack_num": 4, "nested": {"a": [1, 2.5, None, True, "x"]}},
    ),
    ReplayConfig(
        capacity=1000,
        sampling="prioritized",
        alpha=0.5,
        beta=0.5,
        beta_end=0.6,
        eviction="lowest_priority",
        min_size=200,
        samples_per_insert=4.0,
        tolerance=2.0,
        memory_map="scratch",
        max_memory_share=0.25,
        frame_stack=4,
    ),
    ModelConfig(
        torso="nature_cnn",
        hidden_sizes=(512, 256),
        activation="relu",
        shared_torso=False,
        precision="bfloat16",
        channels_last=True,
        recurrent="lstm",
        recurrent_size=32,
        action_distribution="tanh_gaussian",
        initial_log_std=-0.5,
        observation_clip=5.0,
        observation_epsilon=1e-4,
    ),
    A2CConfig(**OF_ALL),
    A3CConfig(**OF_ALL | {"batch_trajectories": 1}),
    DecoupledPPOConfig(
        **OF_SURROGATES,
        behavior_weight_cap=2.0,
    ),
    ImpactConfig(
        **OF_SURROGATES,
        buffer_batches=2,
        batch_uses=3,
        target_update_updates=5,
        target_ratio_cap=1.5,
        rho_bar=2.0,
        c_bar=0.5,
    ),
    ImpalaConfig(
        unroll_length=20,
        batch_trajectories=6,
        gamma=0.997,
        learning_rate=1e-4,
        anneal_learning_rate=True,
        adam_epsilon=1e-8,
        max_grad_norm=40.0,
        entropy_coefficient=0.0,
        value_coefficient=1.0,
        reward_clip=1.0,
        reward_scale=0.5,
        normalized_reward_clip=3.0,
        max_nonfinite_updates=5,
        learning_rate_scaling="linear",
        reference_batch=256,
        warmup_updates=5,
        rows_per_pass=64,
        rho_bar=1.5,
        c_bar=1.25,
        pg_rho_bar=2.0,
        lambda_=0.9,
    ),
    PPOConfig(
        unroll_length=64,
        batch_trajectories=2,
        gamma=0.9,
        learning_rate=1e-3,
        anneal_learning_rate=True,
        adam_epsilon=1e-8,
        max_grad_norm=1.0,
        entropy_coefficient=0.0,
        value_coefficient=1.0,
        reward_clip=10.0,
        reward_scale=2.0,
        normalized_reward_clip=7.0,
        max_nonfinite_updates=1,
        learning_rate_scaling="linear",
        reference_batch=256,
        warmup_updates=5,
        rows_per_pass=64,
        gae_lambda=0.9,
        clip_epsilon=0.1,
        value_clip=0.2,
        dual_clip=3.0,
        epochs=1,
        num_minibatches=1,
        normalize_advantages=False,
        target_kl=0.01,
    ),
    ApexConfig(**OF_LADDER),
    DQNConfig(**OF_VALUES, epsilon_end=0.01, epsilon_env_steps=500),
    R2D2Config(
        **OF_LADDER,
        burn_in_steps=5,
        trained_steps=10,
        priority_eta=0.5,
        rescale_epsilon=None,
    ),
    DDPGConfig(**OF_TD3),
    SACConfig(**OF_CONTINUOUS, initial_temperature=0.5, target_entropy=-2.0, temperature_learning_rate=1e-3),
    TD3Config(**OF_TD3),
    RanksConfig(actors=5, replay=2, learners=3, workers=4, nodes=2, learner_device="auto"),
    LagConfig(max_lag=8, overdue="drop", publish_every_updates=3, publish_every_seconds=2.0),
    BudgetConfig(env_steps=2**40),
    EvaluationConfig(episodes=0, seed=1, greedy=False, max_episode_steps=100),
    CheckpointConfig(every_updates=7, every_seconds=None, keep=5, keep_best=3, margin_s=0.0),
    StorageConfig(
        runs_dir="elsewhere", run_dir="here", flush_interval_s=0.25, patience_s=12, buffer_bytes=1 << 20
    ),
    CommConfig(
        slots=4,
        chunk_bytes=1024,
        transport="messages",
        wait="spin",
        drain_timeout_s=5.0,
        checksum=True,
        debug=True,
    ),
    ReductionConfig(
        form="messages",
        exchange="two_phase",
        compression="topk",
        topk_fraction=0.1,
        warmup_updates=0,
        bucket_bytes=8192,
        shard_optimizer=True,
        timeout_s=7.5,
    ),
    ProfileConfig(delay_s={"replay.sample": 0.01}, trace=True, trace_s=5.0, trace_bytes=1 << 20),
    FaultsConfig(stall_timeout_s=None, start_timeout_s=None, actor_death="continue", without=("watchdog",)),
    LogConfig(progress_interval_s=0.5, level="debug"),
    ComponentConfig(partition="gpu", nodes=2, cpus_per_rank=8, sbatch=("--gres=gpu:1",)),
    SiteConfig(
        partition="cpu",
        account="p123",
        qos="long",
        sbatch=("--mem-per-cpu=2G",),
        time="1-0",
        nodes=4,
        cpus_per_rank=2,
        modules=("gcc/13",),
        setup=("ulimit -c 0",),
        environment={"UCX_TLS": "tcp"},
        command="python -m hpcrl",
        launcher="mpiexec",
        mpi="pmix",
        launcher_options=("--cpu-bind=cores",),
        signal="TERM",
        signal_lead_s=60,
        requeue=False,
        max_attempts=3,
        scratch="/scratch",
        hdf5_locking=False,
        learners=ComponentConfig(nodes=2),
        actors=ComponentConfig(nodes=3),
    ),
]
CONTRADICTED = {
    "normalize_observations",
    "normalize_returns",
    "mask_from_info",
    "injection",
    "auto_temperature",
}
"""By other values of the examples: nature_cnn, reward_scale, reward_clip, envpool, pipeline, target_entropy."""
BY_TYPE = {type(section): section for section in SECTIONS}
ALGORITHMS = tuple(type(section) for section in SECTIONS if isinstance(section, AlgorithmConfig))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: type(section).__name__)
class TestSections:
    def test_round_trip(self, section):
        again = type(section).parse(json.loads(section.to_json()))
        assert again == section
        assert again.to_json() == section.to_json()

    def test_the_example_has_no_default_left(self, section):
        kept = [
            name
            for name, field in type(section).model_fields.items()
            if name not in {"name", *CONTRADICTED}
            and getattr(section, name) == field.get_default(call_default_factory=True)
        ]
        assert kept == []

    def test_unknown_keys_are_refused(self, section):
        text = message(type(section).parse, section.to_dict() | {"bogus": 1}, "here")
        assert "unknown key 'here.bogus'" in text
        assert all(name in text for name in type(section).model_fields)

    def test_frozen(self, section):
        with pytest.raises(ValidationError):
            section.bogus = 1
        name = next(iter(type(section).model_fields))
        with pytest.raises(ValidationError):
            setattr(section, name, getattr(section, name))


def all_sections():
    found = [Config]
    for section in found:
        found += [cls for cls in section.__subclasses__() if cls.__module__.startswith("hpcrl.")]
    return found[1:]


BASES = {
    ActionValueConfig,
    ActorCriticConfig,
    AlgorithmConfig,
    ContinuousConfig,
    LadderConfig,
    OffPolicyConfig,
    PlainGradientConfig,
    ProfileConfig,
    SurrogateConfig,
}


def test_the_sections_are_all_tested():
    assert {*BY_TYPE, *BASES, RunConfig} == set(all_sections())


@pytest.mark.parametrize("section", all_sections(), ids=lambda section: section.__name__)
def test_every_field_has_a_docstring(section):
    assert section.__doc__
    bare = [name for name, field in section.model_fields.items() if not field.description]
    if section in ALGORITHMS:
        bare.remove("name")  # documented at AlgorithmConfig
    if section is RunConfig:
        bare = [name for name in bare if name not in SECTION_NAMES]  # a section's class says what it is
    assert bare == []


@pytest.mark.parametrize("algorithm", [BY_TYPE[section] for section in ALGORITHMS], ids=lambda one: one.name)
def test_a_whole_run_round_trips(algorithm):
    few = {"learners": 1, "replay": 1} if algorithm.sends_gradients else {}
    model, replay, lag = BY_TYPE[ModelConfig], ReplayConfig(), BY_TYPE[LagConfig]
    if algorithm.uses_replay:
        replay = BY_TYPE[ReplayConfig].model_copy(update={"eviction": "fifo"})
        lag = lag.model_copy(update={"max_lag": 1, "overdue": "wait"})
        algorithm = algorithm.model_copy(update={"batch_trajectories": None})
        recurrent = "lstm" if algorithm.sequence_steps else "none"
        model = model.model_copy(
            update={
                "shared_torso": not isinstance(algorithm, ContinuousConfig),
                "recurrent": recurrent,
                "action_distribution": "auto",
                "initial_log_std": 0.0,
            }
        )
    run = RunConfig(
        name="All.of_it-1",
        scheme="pipeline",
        seed=2**40,
        env=BY_TYPE[EnvConfig],
        model=model,
        algorithm=algorithm,
        replay=replay,
        ranks=BY_TYPE[RanksConfig].model_copy(update={"learner_device": "cpu"} | few),
        lag=lag,
        budget=BY_TYPE[BudgetConfig],
        evaluation=BY_TYPE[EvaluationConfig],
        storage=BY_TYPE[StorageConfig],
        checkpoint=BY_TYPE[CheckpointConfig],
        comm=BY_TYPE[CommConfig],
        reduction=BY_TYPE[ReductionConfig],
        faults=BY_TYPE[FaultsConfig],
        log=BY_TYPE[LogConfig],
        profile=BY_TYPE[ProfileConfig],
    )
    again = RunConfig.parse(json.loads(run.to_json()))
    assert again == run
    assert type(again.algorithm) is type(algorithm)
    assert again.to_json() == run.to_json()
    assert run.with_overrides([]) == run
