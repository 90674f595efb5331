"""The tables that say where time and bytes went, and the columns that say when and whose a row is."""

from __future__ import annotations

from hpcrl.storage.columns import Column, Table

TIME = Column("time_s", "f8", "s", "each", "wall time since this attempt's first env_step")
ROLE = Column("role", "S16", "text", "each", "actor, replay, learner, worker or root")
ROLE_RANK = Column("role_rank", "i4", "1", "each", "index of the rank within its role")

TIMERS = Table(
    "timers",
    (
        TIME,
        ROLE,
        ROLE_RANK,
        Column("hop", "S32", "text", "each", "what was timed, by the names below"),
        Column(
            "seconds",
            "f8",
            "s",
            "each",
            "from its entry to its exit, with all within, since the attempt began",
        ),
        Column("count", "i8", "1", "each", "how often, since the attempt began"),
        Column(
            "own_s",
            "f8",
            "s",
            "each",
            "time of the rank that was this hop's and no other's: all hops of a rank add up to its age_s",
        ),
        Column("age_s", "f8", "s", "each", "age of the rank's process"),
    ),
    "Cumulative time per rank and hop; a later row of the same rank and hop replaces an earlier one.",
)
EDGES = Table(
    "edges",
    (
        TIME,
        Column(
            "stream",
            "S24",
            "text",
            "each",
            "kind of message: trajectory, grant, batch, request, parameters, version, records, ...; `sums`: what a "
            "learner gave to sums over all of them",
        ),
        Column("source", "i4", "1", "each", "world rank that sent"),
        Column("dest", "i4", "1", "each", "world rank that received; -1: all learners"),
        Column("messages", "i8", "1", "each", "messages since the attempt began"),
        Column("bytes", "i8", "B", "each", "bytes since the attempt began"),
        Column(
            "wait_s",
            "f8",
            "s",
            "each",
            "time the source waited for a free slot (sums: for the others), since the attempt began",
        ),
    ),
    "Cumulative traffic per pair of ranks. Parameters are read where the learner put them, inside a node, and do not "
    "travel; of sums only what goes by messages counts as bytes.",
)
