"""Environments that sleep, as if a solver elsewhere computed: what more actors bring, seen on any machine."""

from hpcrl.config import BudgetConfig, EnvConfig, ImpalaConfig, LagConfig, ModelConfig, RanksConfig, RunConfig


def impala() -> RunConfig:
    """10 ms per env_step, one environment per actor; `hpcrl bench scale` runs it with more and more actors."""
    return RunConfig(
        name="slow_solver-impala",
        scheme="pipeline",
        env=EnvConfig(id="chain", engine="toy", num_envs=4, kwargs={"seconds_per_step": 0.01}),
        model=ModelConfig(hidden_sizes=(32,)),
        algorithm=ImpalaConfig(unroll_length=32),
        ranks=RanksConfig(actors=4),
        lag=LagConfig(max_lag=1),
        budget=BudgetConfig(env_steps=4000),
    )
