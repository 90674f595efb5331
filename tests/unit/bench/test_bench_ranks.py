import pytest

from hpcrl.bench.mpi.ranks import start_ranks

MEASURE = "hpcrl.bench.mpi.command:measure"


def test_ranks_are_started_and_rank_0_answers():
    calls = [["waiting:waiting", {"rounds": 1}]]
    (world,) = start_ranks(MEASURE, {"calls": calls}, 2)["worlds"]
    assert world["ranks"] == 2
    assert len(world["lines"]) == 4


@pytest.mark.parametrize(
    ("function", "ranks", "match"),
    [
        ("hpcrl.bench.mpi.command:absent", 1, r"absent"),
        ("builtins:iter", 2, r"(?s)builtins:iter on 2 ranks ended with exit code.*TypeError"),
    ],
)
def test_a_failure_ends_all_ranks_and_is_shown(function, ranks, match):
    with pytest.raises(RuntimeError, match=match):
        start_ranks(function, {}, ranks)


def test_a_measurement_that_needs_more_ranks_says_so_once():
    with pytest.raises(RuntimeError, match="start 2 or more") as caught:
        start_ranks(MEASURE, {"calls": [["waiting:waiting", {"rounds": 1}]]}, 1)
    assert str(caught.value).count("start 2 or more") == 1
