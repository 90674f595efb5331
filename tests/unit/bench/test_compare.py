import io
import json

import pytest
from rich.console import Console

from hpcrl.bench.mpi.compare import Comparison, figure, line, lines, render, shown, size_label

TIMES = {"ours": {"seconds": 2.0}, "theirs": {"seconds": 8.0}, "copy": {"seconds": 1.0}}


def test_time_is_in_units_of_the_references_and_small_is_good():
    (found,) = lines(TIMES, [Comparison("ours", "copy", "time", aim=2.0)])
    assert found["ratio"] == 2.0
    assert found["aim"] == "<= 2.00 x"
    assert found["met"] is True
    assert line(Comparison("ours", "copy", "time", aim=1.99), 2.0, 1.0)["met"] is False


def test_speed_is_the_inverse_and_large_is_good():
    (found,) = lines(TIMES, [Comparison("ours", "theirs", "speed", aim=4.0)])
    assert found["ratio"] == 4.0
    assert found["aim"] == ">= 4.00 x"
    assert found["met"] is True
    assert line(Comparison("ours", "theirs", "speed", aim=4.01), 2.0, 8.0)["met"] is False


def test_without_an_aim_nothing_is_met_or_missed():
    (found,) = lines(TIMES, [Comparison("ours", "theirs", "speed")])
    assert found["aim"] is None
    assert found["met"] is None


def test_what_was_not_measured_has_no_line():
    comparisons = [Comparison("ours", "absent", "time"), Comparison("absent", "copy", "time")]
    assert lines(TIMES, comparisons) == []


def test_bytes_give_a_rate():
    (found,) = lines(TIMES, [Comparison("ours", "copy", "time", nbytes=3_000_000_000)])
    assert found["gb_per_s"] == 1.5


def test_figures_have_no_reference():
    assert figure("cpu", 4.0, "%", at_most=5.0) == {
        "case": "cpu",
        "value": 4.0,
        "unit": "%",
        "aim": "<= 5.00 %",
        "met": True,
    }
    assert figure("cpu", 6.0, "%", at_most=5.0)["met"] is False
    assert figure("wake-up", 1e-4, "s")["met"] is None


@pytest.mark.parametrize(
    ("value", "unit", "want"),
    [(2.5, "s", "2.5 s"), (0.0123, "s", "12.3 ms"), (4.5e-5, "s", "45 us"), (3.0, "%", "3.00 %")],
)
def test_numbers_for_people(value, unit, want):
    assert shown(value, unit) == want


@pytest.mark.parametrize(
    ("nbytes", "want"), [(512, "512 B"), (28 << 10, "28 KB"), (128 << 20, "128 MB"), (3 << 19, "1.5 MB")]
)
def test_sizes_for_people(nbytes, want):
    assert size_label(nbytes) == want


def test_every_line_is_in_the_table_with_its_verdict():
    world = {
        "title": "Something",
        "lines": [
            *lines(
                TIMES, [Comparison("ours", "theirs", "speed", 8.0), Comparison("ours", "copy", "time", 3.0)]
            ),
            figure("idle", 1.25, "%", at_most=5.0),
        ],
        "notes": ["CRC-32 0badcafe"],
        "cases": {"ours": {"seconds_rounds": [2.0] * 7}, "model": {"seconds": 1.0}},
    }
    prediction = {
        "parameters": 1234,
        "nodes": 2,
        "ranks_per_node": 3,
        "speeds": {"link_bytes_per_s": 1.25e8},
        "forms": [
            {
                "exchange": "two_phase",
                "compression": "none",
                "seconds": 0.5,
                "link_bytes": 2e6,
                "chosen": True,
            }
        ],
    }
    cut = {**world, "title": "Cut", "cases": {"ours": {"seconds_rounds": [2.0] * 3}}}
    result = {"worlds": [world, cut], "rounds": 7, "prediction": prediction}
    assert json.loads(json.dumps(result)) == result
    text = io.StringIO()
    Console(file=text, width=160).print(render(result))
    rows = {tuple(row.split()[:2]): row for row in text.getvalue().splitlines() if row.strip()}
    assert "Something, median of 7 rounds" in text.getvalue()
    assert "Cut, median of 3 to 7 rounds" in text.getvalue()
    assert "4.00 x as fast" in rows["ours", "theirs"]
    assert rows["ours", "theirs"].split()[-1] == "no"
    assert "2.00 x its time" in rows["ours", "copy"]
    assert rows["ours", "copy"].split()[-1] == "yes"
    assert rows["idle", "1.25"].split()[-1] == "yes"
    assert "0badcafe" in text.getvalue()
    assert "1,234 parameters on 2 nodes x 3 ranks, 1 Gbit/s" in text.getvalue()
    assert rows["two_phase", "none"].split()[-1] == "yes"
