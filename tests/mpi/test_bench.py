"""Every rank bench on whatever ranks there are: complete, finite, the same on all ranks."""

import json
import math

import pytest

from hpcrl.bench.mpi.batches import batches
from hpcrl.bench.mpi.fan_in import fan_in
from hpcrl.bench.mpi.parameters import publication
from hpcrl.bench.mpi.replay import replay
from hpcrl.bench.mpi.speeds import speeds
from hpcrl.bench.mpi.sums import sums
from hpcrl.bench.mpi.transfer import transfers
from hpcrl.bench.mpi.waiting import waiting
from hpcrl.bench.replay import Hpcrl, Kind
from hpcrl.config import ConfigError


def check(comm, result):
    """JSON, equal on all ranks, every figure positive; the names of cases and the pairs compared."""
    assert json.loads(json.dumps(result)) == result
    assert comm.allgather(result["cases"]) == comm.size * [result["cases"]]
    for case in result["cases"].values():
        assert math.isfinite(case["seconds"])
        assert case["seconds"] > 0
    for line in result["lines"]:
        assert math.isfinite(line.get("ratio", line.get("value")))
        assert line.get("ratio", line.get("value")) > 0
    assert result["ranks"] == comm.size
    return set(result["cases"]), {(line["case"], line.get("reference")) for line in result["lines"]}


@pytest.mark.parametrize("made_up", ["abab", "abcd"])
def test_speeds(comm, made_up, monkeypatch):
    monkeypatch.setattr("hpcrl.bench.mpi.speeds._LARGE_BYTES", 32 << 10)
    monkeypatch.setattr("hpcrl.bench.mpi.speeds._ROUNDS", 1)
    nodes = made_up[: comm.size]
    result = speeds(comm, nodes)
    assert comm.allgather(result) == comm.size * [result]
    if comm.size == 1:
        assert result == {}
        return
    full = [node for node in dict.fromkeys(nodes) if nodes.count(node) > 1]
    want = [("inside a node", full)] * bool(full)
    want += [("between nodes", ["a", other]) for other in dict.fromkeys(nodes) if other != "a"]
    assert [(link["kind"], link["nodes"]) for link in result["links"]] == want
    figures = [link[name] for link in result["links"] for name in ("latency_s", "bytes_per_s")]
    assert all(0 < figure < math.inf for figure in [*figures, *result["sums"].values()])


def test_sums_in_a_node(comm):
    cases, pairs = check(comm, sums(comm, [4096, 100_000], 2))
    hpcrl, messages = "4 KB, hpcrl", "4 KB, hpcrl by messages"
    want = {(hpcrl, "memcpy by every rank"), (hpcrl, "model, hpcrl")}
    if comm.size > 1:
        references = ("memcpy to shared memory", "library's Allreduce", "torch gloo")
        want |= {(hpcrl, reference) for reference in references} | {(messages, "library's Allreduce")}
    assert {pair for pair in pairs if pair[0].startswith("4 KB")} == want
    assert len(pairs) == 2 * len(want)
    assert len(cases) == 2 * (7 if comm.size > 1 else 3)


def test_sums_between_nodes(comm):
    nodes = ["a" if rank < (comm.size + 1) // 2 else "b" for rank in range(comm.size)]
    result = sums(comm, [8192], 2, nodes)
    _, pairs = check(comm, result)
    assert result["nodes"] == min(comm.size, 2)
    if comm.size == 1:
        return
    forms = ["all_gather exact", "two_phase exact", "all_gather bf16", "all_gather int8", "all_gather topk"]
    exact = "8 KB, hpcrl all_gather exact"
    assert pairs == {
        (exact, "bound of the link"),
        (exact, "library's Allreduce"),
        *[(f"8 KB, hpcrl {form}", "hpcrl all_gather exact") for form in forms[1:]],
        *[(f"8 KB, hpcrl {form}", f"model, hpcrl {form}") for form in forms],
    }
    assert min(result["speeds"].values()) > 0
    words = result["notes"][0].replace(",", "").split()
    assert words[words.index("exact") + 1] == words[-words[::-1].index("exact")]


def test_transfers(comm):
    if comm.size == 1:
        with pytest.raises(ConfigError, match="2 or more"):
            transfers(comm, [4096], 1)
        return
    _, pairs = check(comm, transfers(comm, [1 << 20], 2, 1 << 20))
    assert pairs == {
        ("1 MB, in place", "1 MB, memcpy to shared memory"),
        ("1 MB, by messages", "1 MB, memcpy to own memory"),
        ("1 MB, memcpy to shared memory", "1 MB, memcpy to own memory"),
        ("2 KB, in place", "2 KB, seven arrays pickled"),
        ("2 KB, by messages", "2 KB, seven arrays pickled"),
    }


def test_fan_in(comm):
    if comm.size == 1:
        with pytest.raises(ConfigError, match="two ranks"):
            fan_in(comm, 1)
        return
    _, pairs = check(comm, fan_in(comm, 2, messages=100))
    raw = "one of 4 KB, plain MPI loop"
    assert pairs == {("one of 4 KB, in place", raw), ("one of 4 KB, by messages", raw)}


def test_waiting(comm):
    if comm.size == 1:
        with pytest.raises(ConfigError, match="2 or more"):
            waiting(comm, 1)
        return
    _, pairs = check(comm, waiting(comm, 1))
    ways = ("in the node, bell", "by messages, sleeping")
    assert {case for case, _ in pairs} == {
        f"{what}, {way}" for way in ways for what in ("wake-up", "CPU of a waiting rank")
    }


def test_batches(comm):
    if comm.size == 1:
        with pytest.raises(ConfigError, match="2 or more"):
            batches(comm, [64], 1)
        return
    _, pairs = check(comm, batches(comm, [1024, 4096], 2, 1 << 20))
    assert pairs == {
        (f"256 rows of {size}, {way}", f"256 rows of {size}, np.take alone, {way}")
        for size in ("1 KB", "4 KB")
        for way in ("in the node", "by messages")
    }


def test_publication(comm):
    if comm.size < 3:
        with pytest.raises(ConfigError, match="3 ranks or more"):
            publication(comm, [4096], 1)
        return
    _, pairs = check(comm, publication(comm, [4096, 300_000], 2))
    assert pairs == {
        pair
        for size in ("4 KB", "293 KB")
        for way in ("in the node", "by messages")
        for pair in (
            (f"{size}, {way}, learner held", f"{size}, {way}, memcpy to own memory"),
            (f"{size}, {way}, last actor has it", None),
        )
    } | {
        (f"{size}, in the node, learner held", f"{size}, in the node, memcpy to shared memory")
        for size in ("4 KB", "293 KB")
    }


def test_replay(comm, monkeypatch):
    kinds = (Kind("floats", (3,), "float32", 1024), Kind("frames", (2, 8, 8), "uint8", 1024, 2))
    monkeypatch.setattr("hpcrl.bench.mpi.replay.KINDS", kinds)
    monkeypatch.setattr("hpcrl.bench.mpi.replay._MOVES", {"float32": 2, "uint8": 1})
    if comm.size == 1:
        # the peers are no requirement: another memory of ours stands in for one, and what is missing is said
        monkeypatch.setattr("hpcrl.bench.mpi.replay.CONTESTANTS", {"hpcrl": Hpcrl, "cpprb": Hpcrl})
        monkeypatch.setattr("hpcrl.bench.mpi.replay.missing_peers", lambda: ["tianshou"])
        result = replay(comm, 1)
        assert "tianshou: not installed" in result["notes"][-1]
        want = {(f"{kind.name}, hpcrl", f"{kind.name}, cpprb") for kind in kinds}
        assert {(line["case"], line["reference"]) for line in result["lines"]} == want
        return
    _, pairs = check(comm, replay(comm, 1))
    shards = f"{comm.size - 1} shards"
    assert pairs == {(f"{kind.name}, {shards}", f"{kind.name}, in one process") for kind in kinds}
