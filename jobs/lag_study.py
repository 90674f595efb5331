"""What data that are late do to each algorithm: CartPole with a lag that is put in, with and without corrections.

Every run is one process in which each batch is trained K updates after the policy that collected it (lag.injection).
Nothing else changes between the runs of an algorithm. A run that has finished is skipped and one that was interrupted
goes on, so the command may be stopped and given again; its end is the table and the picture of analysis/lag_study.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpcrl.config import (
    A2CConfig,
    AlgorithmConfig,
    BudgetConfig,
    ConfigError,
    DecoupledPPOConfig,
    EnvConfig,
    ImpalaConfig,
    LagConfig,
    ModelConfig,
    PPOConfig,
    RunConfig,
    StorageConfig,
)

EXAMPLES = """examples:
  python jobs/lag_study.py studies/lag                                 4 lags x 5 algorithms x 3 seeds
  python jobs/lag_study.py studies/lag --lags 0 100 --cases ppo ppo-dual --seeds 0 --env_steps 50000
  nice -n 19 python jobs/lag_study.py studies/lag --jobs 4             four runs at a time

FOLDER then holds runs/CASE-kLAG-sSEED, lag_study.csv, lag_study.md and lag_study.png. A run whose gradients are no
longer finite ends with code 4 and counts as it is."""

_COMMON = {"unroll_length": 16, "gamma": 0.98, "reward_scale": 0.1}
_SURROGATE = {**_COMMON, "learning_rate": 1e-3, "num_minibatches": 1}
_ONE_STEP = {**_COMMON, "learning_rate": 3e-3, "entropy_coefficient": 0.003}
CASES: dict[str, AlgorithmConfig] = {
    "ppo": PPOConfig(**_SURROGATE),
    "ppo-dual": PPOConfig(**_SURROGATE, dual_clip=3.0),
    "decoupled": DecoupledPPOConfig(**_SURROGATE),
    "impala": ImpalaConfig(**_ONE_STEP),
    "a2c": A2CConfig(**_ONE_STEP, gae_lambda=0.95),
}
"""PPO as it is, with its dual clip, with its trust interval around the newest policy; V-trace; no correction at all."""
LAGS = (0, 10, 50, 100)
_FAILED = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code: 0, 1 when runs failed, 2 for a wrong setting."""
    options = _parser().parse_args(arguments)
    try:
        todo = [one for one in _runs(options) if not _is_over(one)]
    except ConfigError as error:
        sys.stderr.write(f"lag_study: {error}\n")
        return 2
    failed = _run_all(todo, options.jobs)
    for line in failed:
        sys.stderr.write(f"lag_study: {line}\n")
    script = Path(__file__).parents[1] / "analysis" / "lag_study.py"
    command = [
        sys.executable,
        str(script),
        str(options.folder / "runs"),
        "--out",
        str(options.folder / "lag_study"),
    ]
    drawn = subprocess.run(command, check=False).returncode
    return 1 if failed else drawn


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lag_study.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, help="where the runs and their picture are to lie"
    )
    parser.add_argument(
        "--lags", type=int, nargs="+", default=LAGS, metavar="K", help="updates (default: 0 10 50 100)"
    )
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=tuple(CASES), help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2), metavar="N", help="default: 0 1 2")
    parser.add_argument(
        "--env_steps", type=int, default=150_000, metavar="N", help="of each run (default: 150000)"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default: 1)")
    return parser


def _runs(options: argparse.Namespace) -> Iterator[RunConfig]:
    """Seed by seed, so that what is there is complete as far as it goes."""
    for seed in options.seeds:
        for lag in options.lags:
            for case in options.cases:
                name = f"{case}-k{lag}"
                yield RunConfig(
                    name=name,
                    seed=seed,
                    scheme="synchronous",
                    env=EnvConfig(id="CartPole-v1", engine="envpool", num_envs=16),
                    model=ModelConfig(shared_torso=False),
                    algorithm=CASES[case],
                    lag=LagConfig(injection=lag, max_lag=lag),
                    budget=BudgetConfig(env_steps=options.env_steps),
                    storage=StorageConfig(run_dir=str(options.folder / "runs" / f"{name}-s{seed}")),
                )


def _is_over(config: RunConfig) -> bool:
    """Whether a run has its result. Raises ConfigError when another run lies in its place."""
    from hpcrl.storage.resume import finished
    from hpcrl.storage.rundir import read_status

    status = read_status(Path(str(config.storage.run_dir)))
    return bool(finished(config, "if-exists")) or status.get("exit_code") == _FAILED


def _run_all(configs: Sequence[RunConfig], jobs: int) -> list[str]:
    """Run each in a process of its own, with a bar; what failed."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        pool = ThreadPoolExecutor(jobs)
        try:
            return [line for line in progress.track(pool.map(_run, configs), len(configs)) if line]
        finally:  # Ctrl-C stops those under way by itself; the others do not begin
            pool.shutdown(cancel_futures=True)


def _run(config: RunConfig) -> str:
    """One run; why it failed, or nothing."""
    run_dir = Path(str(config.storage.run_dir))
    recipe, log = run_dir.with_suffix(".json"), run_dir.with_suffix(".log")
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(config.to_json(), encoding="utf-8")
    command = [sys.executable, "-m", "hpcrl", "run", str(recipe), "--resume", "if-exists"]
    with log.open("w", encoding="utf-8") as file:
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        code = subprocess.run(command, stdout=file, stderr=file, env=environment, check=False).returncode
    return "" if code in (0, _FAILED) else f"{run_dir} ended with code {code}; see {log}"


if __name__ == "__main__":
    sys.exit(main())
