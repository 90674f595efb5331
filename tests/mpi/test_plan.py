"""What `hpcrl plan` measures on ranks of their own."""

from hpcrl.bench.plan.reduction import measure_sums


def test_sums_of_gradients_and_of_a_few_numbers(comm):
    found = measure_sums(comm, nbytes=4096)
    assert set(found) == {"reduce", "agree"}
    for cost in found.values():
        assert cost["cpu_s"] > 0 and cost["span_s"] > 0
