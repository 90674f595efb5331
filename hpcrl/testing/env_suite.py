"""check_env: everything hpcrl relies on in an environment, tried out on the environment itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hpcrl.config import ConfigError, EnvConfig, ExitCode
from hpcrl.config.model import SMALLEST_IMAGE
from hpcrl.data.specs import ArraySpec, EnvSpec
from hpcrl.envs import VectorEnv, env_seed, make_vector_env
from hpcrl.testing import env_checks as checks
from hpcrl.testing.env_checks import Finding
from hpcrl.testing.recording import Array, Recording, draw_actions, record

ENGINES = get_args(EnvConfig.model_fields["engine"].annotation)
Build = Callable[[Sequence[int], int], VectorEnv]
"""(global indices, seed) -> environments."""


class EnvCheckError(Exception):
    """An environment breaks the protocol; `report` has every finding."""

    def __init__(self, report: EnvReport) -> None:
        self.report = report
        lines = [f"- {finding.check}: {finding.message}" for finding in report.errors]
        super().__init__("\n".join([f"{report.name} breaks the environment protocol:", *lines]))


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvReport:
    """What the suite found."""

    name: str
    spec: EnvSpec | None
    """None when not even one environment could be made and run."""
    findings: tuple[Finding, ...]
    env_steps_per_s: float
    """Of all environments of the group together, with random actions, in this process."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are more than notes."""
        return tuple(finding for finding in self.findings if finding.is_error)


def check_env(
    env: str | Callable[..., VectorEnv],
    *,
    num_envs: int = 3,
    steps: int = 200,
    kwargs: dict[str, Any] | None = None,
) -> EnvReport:
    """Try out an environment against the protocol.

    Args:
        env: `engine:id` (gymnasium:CartPole-v1, envpool:Pong-v5, toy:counting), `package.module:make` as for
            env.engine=custom, or a callable `make(num_envs=, seeds=, **kwargs)` that gives a VectorEnv.
        num_envs: environments in the group.
        steps: env_steps of each of the six runs; enough that some episodes end.
        kwargs: env.kwargs.

    Returns:
        The report, whose findings are notes only.

    Raises:
        EnvCheckError: something is wrong; its message lists everything, its `report` is the same as data.
        ConfigError: the environment cannot be made at all.
    """
    if num_envs < 1 or steps < 1:
        raise ValueError(f"num_envs={num_envs}, steps={steps}; use at least 1 of each")
    build = _builder(env, kwargs or {})
    name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    first = build(range(num_envs), 0)
    spec = first.spec
    first.close()
    try:
        report = _run_checks(name, spec, build, num_envs, steps)
    except Exception as error:  # whatever the environment raises is what the suite is for
        text = f"{type(error).__name__}: {error}"
        report = EnvReport(name=name, spec=spec, findings=(Finding("runs", text),), env_steps_per_s=0.0)
        raise EnvCheckError(report) from error
    if report.errors:
        raise EnvCheckError(report)
    return report


def check_command(path: str, *, num_envs: int = 3, steps: int = 200) -> int:
    """Check an environment, print a table, and return an exit code: 0 sound, 1 not, 2 cannot be made."""
    console = Console()
    try:
        report = check_env(path, num_envs=num_envs, steps=steps)
    except ConfigError as error:
        console.print(escape(str(error)), style="red")
        return ExitCode.BAD_CONFIGURATION
    except EnvCheckError as error:
        report = error.report
    _print(console, report)
    return ExitCode.ERROR if report.errors else ExitCode.FINISHED


def _builder(env: str | Callable[..., VectorEnv], kwargs: dict[str, Any]) -> Build:
    if isinstance(env, str):
        engine, _, env_id = env.partition(":")
        if engine not in ENGINES or engine == "custom":
            engine, env_id = "custom", env
        config = EnvConfig.parse({"id": env_id, "engine": engine, "kwargs": kwargs})
        return lambda indices, seed: make_vector_env(config, indices, seed)
    return lambda indices, seed: env(
        num_envs=len(indices), seeds=[env_seed(seed, index) for index in indices], **kwargs
    )


def _run_checks(name: str, spec: EnvSpec, build: Build, num_envs: int, steps: int) -> EnvReport:
    everyone = range(num_envs)
    actions = draw_actions(spec.action, steps, num_envs)
    alike = np.repeat(actions[:, :1], num_envs, axis=1)
    findings = list(_check_calls(build, actions[0]))
    env = build(everyone, 0)
    started = time.perf_counter()
    run = record(env, actions)
    elapsed = time.perf_counter() - started
    findings += checks.check_arrays(run)
    if any(finding.check == "arrays" for finding in findings):  # nothing else can be said about such arrays
        return EnvReport(name=name, spec=spec, findings=tuple(findings), env_steps_per_s=0.0)
    for check in (
        checks.check_finite,
        checks.check_mask,
        checks.check_flags,
        checks.check_valid,
        checks.check_reset_steps,
        checks.check_accounting,
        checks.check_last_observation,
        checks.check_time_limit,
    ):
        findings += check(run)
    again = record(build(everyone, 0), actions)
    spoiled = record(build(everyone, 0), actions, spoil_actions=True)
    findings += checks.check_seeding(run, again, _record_parts(build, actions))
    if not any(finding.check == "seeding" for finding in findings):  # else nothing can be compared
        findings += checks.check_ownership(run, spoiled)
        findings += checks.check_distinct(
            record(build(everyone, 0), alike), record(build(everyone, 1), alike)
        )
    findings += _notes(run)
    return EnvReport(
        name=name, spec=spec, findings=tuple(findings), env_steps_per_s=steps * num_envs / elapsed
    )


def _record_parts(build: Build, actions: Array) -> list[Recording]:
    """Record the same environments divided in two groups, the first of one environment."""
    num_envs = actions.shape[1]
    groups = [group for group in (range(1), range(1, num_envs)) if len(group) > 0]
    return [record(build(group, 0), actions[:, group.start : group.stop]) for group in groups]


def _check_calls(build: Build, actions: Array) -> Iterator[Finding]:
    """Check that calls out of turn and wrong actions are refused, and that close may be called twice."""
    env = build(range(len(actions)), 0)
    try:
        yield from _must_refuse("send() before reset()", lambda: env.send(actions))
        yield from _must_refuse("recv() before reset()", env.recv)
        env.reset()
        yield from _must_refuse("recv() without send()", env.recv)
        too_many = np.concatenate([actions, actions[:1]])
        yield from _must_refuse("send() of one action too many", lambda: env.send(too_many), ValueError)
        env.send(actions)
        yield from _must_refuse("a second send() without recv()", lambda: env.send(actions))
        env.recv()
    finally:
        env.close()
    try:
        env.close()
    except Exception as error:  # any kind is a finding
        yield Finding("calls", f"a second close() raises {type(error).__name__}: {error}")


def _must_refuse(
    what: str, call: Callable[[], object], expected: type[Exception] = RuntimeError
) -> Iterator[Finding]:
    try:
        call()
    except expected:
        return
    except Exception as error:  # any other kind is a finding
        yield Finding("calls", f"{what} raises {type(error).__name__}; use {expected.__name__}")
        return
    yield Finding("calls", f"{what} is accepted; raise {expected.__name__} naming the missing call")


def _notes(run: Recording) -> Iterator[Finding]:
    for name in ("terminated", "truncated"):
        if not run.stack(name).any():
            text = f"no episode was {name} within {len(run.steps)} env_steps: those ends were not checked"
            yield Finding("coverage", text, is_error=False)


def _describe(spec: EnvSpec) -> Iterator[str]:
    """The spaces, and what can be done with them."""
    seen = spec.features
    yield f"observation {seen.dtype}{list(seen.shape)}, for model.torso={' or '.join(_torsos(seen))}"
    for part in seen.parts:
        yield f"  {part.name} {list(part.shape)}"
    if spec.mask_size:
        yield f"action mask of {spec.mask_size} choices"
    choices = f" of {', '.join(map(str, spec.action.choices))} choices" if spec.action.choices else ""
    yield f"action {spec.action.kind} of {spec.action.size}{choices}"


def _torsos(seen: ArraySpec) -> tuple[str, ...]:
    if seen.dtype == "uint8" and len(seen.shape) == 3:
        return (
            ("nature_cnn", "impala_resnet") if min(seen.shape[1:]) >= SMALLEST_IMAGE else ("impala_resnet",)
        )
    return ("mlp",)


def _print(console: Console, report: EnvReport) -> None:
    if report.spec is not None:
        spec = report.spec
        console.print(f"[bold]{escape(report.name)}[/bold]", highlight=False)
        for line in _describe(spec):
            console.print(escape(line), highlight=False)
        console.print(f"time limit {spec.max_episode_steps or 'none'}")
    if report.findings:
        table = Table("check", "", "finding")
        for finding in report.findings:
            mark = "[red]error[/red]" if finding.is_error else "note"
            table.add_row(finding.check, mark, escape(finding.message))
        console.print(table)
    if report.env_steps_per_s > 0:
        console.print(f"{report.env_steps_per_s:,.0f} env_steps_per_s")
    console.print("[red]not sound[/red]" if report.errors else "[green]sound[/green]")
