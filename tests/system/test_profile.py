"""Where the time of whole runs went, in every scheme: shares that add up, traffic per edge, delays, the trace."""

import json
import time
from collections import defaultdict

import numpy as np
import pytest

from hpcrl.storage.trace import merge_traces
from tests.system.support import TOY, run

DELAYS = {
    "env.recv": 0.001,
    "algorithm.act": 0.001,
    "trajectory.write": 0.001,
    "stream.send": 0.01,
    "replay.insert": 0.01,
    "replay.sample": 0.01,
    "algorithm.update": 0.01,
    "reducer.mean_gradients": 0.01,
    "optimizer.step": 0.01,
    "publisher.publish": 0.01,
    "policy.fetch": 0.01,
    "evaluation": 0.001,
}
TRACED = "profile.trace=true"
MEMORY = TOY | {
    "algorithm": {"name": "dqn", "unroll_length": 8, "batch_size": 8},
    "replay": {"capacity": 300, "min_size": 50},
}
RUNS = {
    "synchronous": {"settings": ("scheme=synchronous", "ranks.workers=2", TRACED)},
    "pipeline": {"settings": (TRACED,)},
    "replay memory": {"settings": ("comm.transport=messages",), "recipe": MEMORY},
    "one rank": {"settings": (TRACED, f"profile.delay_s={json.dumps(DELAYS)}"), "ranks": 1},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Made when they are asked for: (the run, seconds it took from outside)."""
    made = {}

    def get(name):
        if name not in made:
            settings, how = (
                RUNS[name]["settings"],
                {key: RUNS[name][key] for key in RUNS[name] if key != "settings"},
            )
            began = time.perf_counter()
            ended = run(tmp_path_factory.mktemp("run"), *settings, **how)
            assert ended.code == 0, ended.stderr
            made[name] = ended, time.perf_counter() - began
        return made[name]

    return get


def last_rows(ended):
    """Rows of table timers that count, by world rank and then by (role, hop)."""
    rank_of = {(row["role"], row["role_rank"]): int(row["world_rank"]) for row in ended.table("ranks")}
    found = defaultdict(dict)
    for row in ended.times():
        found[rank_of[row["role"], row["role_rank"]]][row["role"].decode(), row["hop"].decode()] = row
    return found


@pytest.mark.parametrize("name", RUNS)
def test_the_shares_of_every_rank_add_up_to_its_wall_time(runs, name):
    ended, outside_s = runs(name)
    ranks = last_rows(ended)
    assert len(ranks) == len(set(ended.table("ranks")["world_rank"]))
    trained_s = float(ended.table("updates")["time_s"][-1])
    for rank, rows in ranks.items():
        age_s = max(row["age_s"] for row in rows.values())
        own_s = sum(row["own_s"] for row in rows.values())
        assert own_s == pytest.approx(age_s, rel=0.02), f"rank {rank}"
        assert trained_s < age_s < outside_s
        assert all(row["own_s"] >= 0 and row["own_s"] <= row["seconds"] + 1e-6 for row in rows.values())
        assert sum(row["own_s"] for (_, hop), row in rows.items() if hop == "role.loop") < 0.5 * age_s


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("synchronous", {"worker": {"learners.vote", "reducer.wait", "end.wait"}}),
        (
            "pipeline",
            {
                "actor": {"grant.wait", "policy.fetch", "end.wait"},
                "replay": {"role.wait", "end.wait"},
                "learner": {"batch.wait", "learners.vote", "end.wait"},
            },
        ),
    ],
)
def test_every_wait_has_a_cause(runs, name, waits):
    hops = defaultdict(set)
    for rows in last_rows(runs(name)[0]).values():
        for role, hop in rows:
            hops[role].add(hop)
    for role, wanted in waits.items():
        assert wanted <= hops[role]
        assert {"start", "checkpoint.write"} <= hops[role]
    assert "records.write" in hops[{"synchronous": "worker", "pipeline": "replay"}[name]]
    assert "records.send" in hops[{"synchronous": "worker", "pipeline": "learner"}[name]]


@pytest.mark.parametrize("hop", DELAYS)
def test_a_delay_is_in_every_entry_of_its_hop(runs, hop):
    ((rows),) = last_rows(runs("one rank")[0]).values()
    (row,) = [row for (_, name), row in rows.items() if name == hop]
    assert row["own_s"] >= DELAYS[hop] * row["count"] > 0


def streams(ended):
    """(messages, bytes) by kind, role that sent and role that received."""
    roles = {int(row["world_rank"]): row["role"].decode() for row in ended.table("ranks")} | {-1: "all"}
    found = defaultdict(lambda: np.zeros(2, int))
    for row in ended.table("edges"):
        assert row["wait_s"] >= 0
        edge = row["stream"].decode(), roles[int(row["source"])], roles[int(row["dest"])]
        found[edge] += (row["messages"], row["bytes"])
    return found


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("synchronous", {("records", "worker", "worker"), ("sums", "worker", "all")}),
        (
            "pipeline",
            {
                ("grant", "replay", "actor"),
                ("trajectory", "actor", "replay"),
                ("request", "learner", "replay"),
                ("batch", "replay", "learner"),
                ("version", "learner", "replay"),
                ("records", "actor", "replay"),
                ("records", "learner", "replay"),
                ("sums", "learner", "all"),
            },
        ),
        (
            "replay memory",
            {
                ("grant", "replay", "actor"),
                ("trajectory", "actor", "replay"),
                ("request", "learner", "replay"),
                ("batch", "replay", "learner"),
                ("parameters", "learner", "actor"),
                ("sums", "learner", "all"),
            },
        ),
    ],
)
def test_every_edge_of_the_role_graph_is_in_the_table(runs, name, edges):
    ended, _ = runs(name)
    found = streams(ended)
    assert edges <= set(found)
    updates = ended.describe()["updates"]
    for edge in edges:
        messages, nbytes = found[edge]
        assert messages > 0 and (nbytes > 0 or edge[0] == "sums"), edge
    sums = next(edge for edge in edges if edge[0] == "sums")
    assert found[sums][0] >= 2 * updates


@pytest.mark.parametrize("name", [name for name in RUNS if TRACED in RUNS[name]["settings"]])
def test_the_trace_has_every_rank_nested_slices_and_the_times_of_the_table(runs, name, tmp_path):
    ended, outside_s = runs(name)
    _, _, count = merge_traces(ended.run_dir, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == count
    rows = last_rows(ended)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert set(names) == set(rows)
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert set(threads.values()) == {role for hops in rows.values() for role, _ in hops}
    by_thread, totals = defaultdict(list), defaultdict(lambda: [0.0, 0])
    for event in events:
        if event["ph"] == "X":
            begin, end = event["ts"], event["ts"] + event["dur"]
            assert 0 <= begin <= end <= 1e6 * outside_s
            thread = event["pid"], event["tid"]
            by_thread[thread].append((begin, -end))
            total = totals[event["pid"], threads[thread], event["name"]]
            total[0] += event["dur"] / 1e6
            total[1] += 1
    for slices in by_thread.values():
        assert_nested(slices)
    compared = 0
    for rank, hops in rows.items():
        for (role, hop), row in hops.items():
            if hop in (
                "role.loop",
                "end.wait",
                "records.send",
                "records.write",
                "trace.write",
                "reducer.wait",
            ):
                continue  # no slices, or some after the table's last rows
            seconds, count = totals[rank, role, hop]
            assert seconds == pytest.approx(row["seconds"], rel=1e-3, abs=1e-5 * count), (role, hop)
            assert count == row["count"], (role, hop)
            compared += 1
    assert compared >= 10
    assert any(event["ph"] == "C" and event["name"] == "lag" for event in events)


def assert_nested(slices):
    """Of (begin, -end): two either lie apart or one within the other, to a hundredth of a microsecond."""
    around = []
    for begin, end in ((begin, -end) for begin, end in sorted(slices)):
        while around and around[-1] <= begin + 0.01:
            around.pop()
        assert not around or end <= around[-1] + 0.01
        around.append(end)
