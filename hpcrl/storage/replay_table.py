"""The table of the replay memory; see `hpcrl.storage.schema`, where all tables are."""

from __future__ import annotations

from hpcrl.storage.columns import Column, Table

REPLAY = Table(
    "replay",
    (
        Column("update", "i8", "update", "same", "number of the update that the batch was drawn for"),
        Column("role_rank", "i4", "1", "each", "index of the replay rank"),
        Column("size", "i8", "env_step", "sum", "valid env_steps in this shard"),
        Column("inserted", "i8", "env_step", "sum", "valid env_steps ever inserted in this shard"),
        Column(
            "sampled",
            "i8",
            "1",
            "sum",
            "transitions or sequences ever drawn from this shard, this batch included",
        ),
        Column(
            "priority_total", "f8", "1", "sum", "sum of priority^alpha over what can be drawn from this shard"
        ),
        Column(
            "stale_updates", "i8", "1", "sum", "priorities that came for what had been replaced: left out"
        ),
        Column("refused_priorities", "i8", "1", "sum", "priorities below zero or not finite: left out"),
        Column(
            "actors_wait_s",
            "f8",
            "s",
            "each",
            "time, this attempt, in which samples_per_insert let no actor of this shard begin a trajectory",
        ),
        Column(
            "learners_wait_s",
            "f8",
            "s",
            "each",
            "time, this attempt, in which all learners had asked and samples_per_insert gave them nothing",
        ),
    ),
    "The replay memory when the batch of an update was drawn: a row per update and replay rank.",
)
