import pytest

from hpcrl.bench.child import call


def test_one_core_pins_the_process():
    assert call("hpcrl.bench.machine:machine", {}, one_core=True)["num_cores"] == 1


def test_arguments_and_result_travel():
    result = call("builtins:dict", {"a": [1, 2], "b": None}, one_core=False)
    assert result == {"a": [1, 2], "b": None}


def test_failure_names_the_measurement_and_its_cause():
    with pytest.raises(
        RuntimeError, match=r"(?s)hpcrl\.bench\.machine:absent ended with exit code 1.*absent"
    ):
        call("hpcrl.bench.machine:absent", {}, one_core=False)


def test_failure_inside_is_shown():
    with pytest.raises(RuntimeError, match="unexpected keyword argument 'wrong'"):
        call("hpcrl.bench.machine:machine", {"wrong": 1}, one_core=False)
