import pytest

from hpcrl.bench.mpi.ranks import start_ranks

MEASURE = "hpcrl.bench.mpi.command:measure"


def test_ranks_are_started_and_rank_0_answers():
    calls = [["waiting:waiting", {"rounds": 1}]]
    (world,) = start_ranks(MEASURE, {"calls": calls}, 2)["worlds"]
    assert world["ranks"] == 2
    assert len(world["lines"]) == 4


def test_a_failure_ends_all_ranks_and_is_shown():
    with pytest.raises(RuntimeError, match=r"(?s)builtins:iter on 2 ranks ended with exit code.*TypeError"):
        start_ranks("builtins:iter", {}, 2)


def test_a_refusal_is_said_once():
    with pytest.raises(RuntimeError, match=r"exit code 2:\nhpcrl: measurement cannot be imported") as caught:
        start_ranks("hpcrl.bench.mpi.command:absent", {}, 2)
    assert str(caught.value).count("cannot be imported") == 1
