"""What the writer rank owns: run directory, result file, progress line, last words."""

from __future__ import annotations

import contextlib
import logging
import platform
from collections.abc import Mapping
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table

from hpcrl.comm.ranks import crowded_nodes
from hpcrl.comm.world import World
from hpcrl.config import ExitCode, RunConfig
from hpcrl.config.hops import Timed
from hpcrl.launch.progress import Progress, make_console
from hpcrl.roles.records import table_row
from hpcrl.roles.result_writer import ResultWriter
from hpcrl.storage.provenance import collect
from hpcrl.storage.resume import ResumeMode, open_run
from hpcrl.storage.rundir import Status
from hpcrl.storage.runlog import RunLog, link_attempts
from hpcrl.storage.schema import TABLES, Rows
from hpcrl.storage.summary import describe, render

_log = logging.getLogger(__name__)

STATUS_OF_CODE: dict[int, Status] = {ExitCode.FINISHED: "finished", ExitCode.RESUME_ME: "stopped"}


class Results:
    """Made by the writer rank only. Local; raises ConfigError when the run directory is not to be had."""

    def __init__(
        self,
        world: World,
        config: RunConfig,
        environment: dict[str, Any],
        resume: ResumeMode = "never",
        timed: Timed = nullcontext,
    ) -> None:
        self._console = make_console()
        start = open_run(config, resume)
        self._directory, self.saved = start.directory, start.saved
        self.attempt = start.directory.attempt
        provenance = collect({**environment, "node_list": sorted({seat["node"] for seat in world.seats})})
        self._directory.write_provenance(provenance)
        runlog = RunLog(
            self._directory.attempt_file,
            config_json=config.to_json(),
            provenance=provenance,
            attempt=self.attempt,
            first_update=0 if self.saved is None else self.saved.update,
            flush_interval_s=config.storage.flush_interval_s,
            patience_s=config.storage.patience_s,
            buffer_bytes=config.storage.buffer_bytes,
        )
        link_attempts(self._directory.path)
        env_steps = 0 if self.saved is None else int(self.saved.meta["env_steps"])
        self._progress = Progress(config, self._console, env_steps)
        acting = "worker" if config.scheme == "synchronous" else "actor"
        self.writer = ResultWriter(runlog, self._watch, env_steps, acting, timed)
        self.run_dir = self._directory.path
        self._last_status = perf_counter()
        self._record_plan(world)
        if config.faults.without:
            _log.warning("switched off by faults.without: %s", ", ".join(config.faults.without))
        self.writer.add(
            "events", table_row("events", kind="started", role="root", role_rank=0, world_rank=world.rank)
        )
        for note in start.notes:
            self._console.print(f"resume: {note}", soft_wrap=True, highlight=False)
            row = table_row(
                "events", kind="resumed", role="root", role_rank=0, world_rank=world.rank, text=note
            )
            self.writer.add("events", row)

    def score(self) -> float | None:
        """The recent training return, by which the best checkpoint stays."""
        return self._progress.score

    def finish(self, exit_code: int, cause: str) -> None:
        """Write the last rows, close every file, print the summary; the run directory is the last line."""
        status = STATUS_OF_CODE.get(exit_code, "failed")
        row = table_row("events", kind=status, role="root", role_rank=0, world_rank=-1, text=cause)
        self.writer.add("events", row)
        self._progress.close()
        self.writer.close()
        link_attempts(self.run_dir)
        self._write_status(status, exit_code, cause)
        self._directory.close()
        self._console.print(render(describe(self.run_dir)))
        self._console.print(str(self.run_dir), soft_wrap=True, highlight=False)

    def _watch(self, table: str, rows: Rows) -> None:
        self._progress.watch(table, rows)
        if perf_counter() - self._last_status > 5.0:
            self._last_status = perf_counter()
            with contextlib.suppress(
                OSError
            ):  # the result file tells of a disk that refuses, and how long that may last
                self._write_status("running", None, "")

    def _write_status(self, status: Status, exit_code: int | None, cause: str) -> None:
        progress = self._progress
        self._directory.write_status(
            status,
            exit_code=exit_code,
            cause=cause,
            env_steps=progress.env_steps,
            updates=progress.updates,
            wall_s=progress.wall_s,
            env_steps_per_s=progress.env_steps_per_s,
        )

    def _record_plan(self, world: World) -> None:
        table = Table(
            title=f"hpcrl on {platform.node()}, {world.comm.size} ranks", box=None, padding=(0, 2, 0, 0)
        )
        for name in ("rank", "role", "node", "device", "cores", "threads"):
            table.add_column(name, justify="left")
        placements = world.plan.placements
        for placement in placements:
            seat = world.seats[placement.world_rank]
            cores = ranges(seat["cores"])
            device = seat["device"] if placement.role in ("learner", "worker") else "cpu"
            self.writer.add(
                "ranks",
                table_row(
                    "ranks",
                    world_rank=placement.world_rank,
                    role=placement.role,
                    role_rank=placement.role_rank,
                    node=seat["node"],
                    local_rank=seat["local_rank"],
                    device=device,
                    cores=cores,
                    threads=seat["threads"],
                    pid=seat["pid"],
                ),
            )
            role = f"{placement.role} {placement.role_rank}"
            table.add_row(str(placement.world_rank), role, seat["node"], device, cores, str(seat["threads"]))
        self._console.print(table)
        for sentence in crowded_nodes(world.seats):
            _log.warning("%s: expect them to take turns", sentence)


def ranges(numbers: list[int]) -> str:
    """Sorted integers as ranges: [0, 1, 2, 5] -> "0-2,5". Pure."""
    if not numbers:
        return ""
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    parts = np.split(np.array(numbers), cuts)
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def edge_rows(world: World, waits_s: Mapping[str, float]) -> Rows:
    """What each of this rank's streams has sent. Local.

    `waits_s`: by kind of message how long this rank has waited for free slots; by design it does for no other kind.
    """
    rows = [
        table_row(
            "edges",
            stream=sender.tag.name.lower(),
            source=world.rank,
            dest=sender.dest,
            messages=sender.messages,
            bytes=sender.bytes,
            wait_s=waits_s.get(sender.tag.name.lower(), 0.0),
        )
        for sender in world.senders
    ]
    return np.concatenate(rows) if rows else TABLES["edges"].empty()
