"""The trace: a file per rank, one of all, whatever became of the ranks."""

import json

import pytest

from hpcrl.config import ConfigError
from hpcrl.storage.trace import TraceFile, merge_traces, trace_file


def open_trace(run, rank=0, attempt=1, **limits):
    limits = {"most_bytes": 1 << 20, "shift_s": 0.0} | limits
    return TraceFile(trace_file(run, attempt, rank), rank=rank, name=f'actor {rank} on "n"', **limits)


def merged(run, out, attempt=None):
    _, ranks, events = merge_traces(run, out, attempt)
    found = json.loads(out.read_text())["traceEvents"]
    assert len(found) == events
    assert len({event["pid"] for event in found}) == ranks
    return found


def slices(events):
    return [
        (event["pid"], event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"
    ]


def test_a_rank_is_a_process_a_role_a_thread_a_hop_a_slice(tmp_path):
    trace = open_trace(tmp_path, rank=3, shift_s=-10.0)
    trace.thread(0, "actor")
    trace.slice(0, "env.recv", 11.0, 11.5)
    trace.counter(0, "lag", 12.0, 1.5)
    trace.close()
    alone = json.loads(trace_file(tmp_path, 1, 3).read_text())
    assert merged(tmp_path, tmp_path / "out.json") == alone
    process, order, thread, counter, slice_ = alone
    assert process["args"] == {"name": 'actor 3 on "n"'} and order["args"] == {"sort_index": 3}
    assert (thread["name"], thread["args"], thread["tid"]) == ("thread_name", {"name": "actor"}, 0)
    assert (slice_["ts"], slice_["dur"], slice_["pid"]) == (1e6, 0.5e6, 3)
    assert (counter["name"], counter["args"], counter["ts"]) == ("lag", {"lag": 1.5}, 2e6)


def test_a_killed_rank_loses_what_it_had_not_written_and_half_a_line(tmp_path):
    for rank in (0, 1):
        trace = open_trace(tmp_path, rank=rank)
        trace.slice(0, "env.recv", 1.0, 2.0)
        trace.flush()
        trace.slice(0, "env.send", 2.0, 3.0)
        trace.flush()
        trace.slice(0, "algorithm.act", 3.0, 4.0)
    path = trace_file(tmp_path, 1, 1)
    path.write_bytes(path.read_bytes()[:-9])
    whole = [(0, "env.recv", 1e6, 1e6), (0, "env.send", 2e6, 1e6), (1, "env.recv", 1e6, 1e6)]
    assert slices(merged(tmp_path, tmp_path / "out.json")) == whole


def test_memory_file_and_time_are_bounded(tmp_path):
    trace = open_trace(tmp_path, most_bytes=5000, stop_s=500.0)
    for number in range(70_000):
        trace.slice(0, "env.recv", 0.01 * number, 0.01 * number + 0.01)
    assert trace.due and not trace.over
    assert len(trace._slices) <= 1 << 16
    trace.flush()  # too much for the file
    assert trace.over
    trace.close()
    assert trace_file(tmp_path, 1, 0).stat().st_size <= 5000
    other = open_trace(tmp_path, rank=1, stop_s=2.0)
    for number in range(4):
        other.slice(0, "env.recv", number, number + 1.0)
    other.flush()
    assert other.over
    other.close()
    found = [event[0] for event in slices(merged(tmp_path, tmp_path / "out.json"))]
    assert 40 < found.count(0) < 80 and found.count(1) == 2


def test_it_is_due_when_much_or_old(tmp_path):
    trace = open_trace(tmp_path)
    trace.slice(0, "env.recv", 1.0, 2.0)
    trace.flush()
    trace.slice(0, "env.recv", 2.0, 2.5)
    assert not trace.due
    trace.slice(0, "env.recv", 2.5, 3.5)
    assert trace.due
    trace.flush()
    for _ in range(1024):
        trace.slice(0, "env.recv", 3.5, 3.6)
    assert trace.due


def test_a_disk_that_refuses_ends_the_trace_alone(tmp_path, caplog):
    (tmp_path / "trace").write_text("in the way")
    trace = open_trace(tmp_path)
    trace.slice(0, "env.recv", 1.0, 2.0)
    trace.flush()
    trace.close()
    assert trace.over
    assert "the trace of rank 0 ends here" in caplog.text


def test_the_last_attempt_unless_another_is_asked_for(tmp_path):
    for attempt in (1, 2):
        trace = open_trace(tmp_path, attempt=attempt)
        trace.slice(0, f"attempt {attempt}", 0.0, 1.0)
        trace.close()
    assert slices(merged(tmp_path, tmp_path / "out.json"))[0][1] == "attempt 2"
    assert slices(merged(tmp_path, tmp_path / "out.json", 1))[0][1] == "attempt 1"
    with pytest.raises(ConfigError, match=r"attempt 3 has no trace; the attempts that have one: 1, 2"):
        merge_traces(tmp_path, tmp_path / "out.json", 3)


def test_without_a_trace_it_says_how_to_get_one(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no trace; run with --set profile\.trace=true"):
        merge_traces(tmp_path, tmp_path / "out.json")
    open_trace(tmp_path).close()
    with pytest.raises(ConfigError, match="cannot be written"):
        merge_traces(tmp_path, tmp_path / "none" / "out.json")
