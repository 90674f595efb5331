import itertools

import pytest

from hpcrl.bench.cost_model import Machine, chosen_form, compressed_fraction, link_bytes, predict
from hpcrl.comm.compress import make_codec
from hpcrl.comm.exchange import cheapest_form
from hpcrl.config import ConfigError, ReductionConfig

GBIT = 1e9 / 8
MB = 1 << 20
FAST = Machine(link_bytes_per_s=1e15, link_latency_s=0.0, memory_bytes_per_s=1e9, local_latency_s=0.0)


def times(*arguments, **keywords):
    return {(p.exchange, p.compression): p.seconds for p in predict(*arguments, **keywords)}


def sent(exchange, nodes):
    """Bytes that leave one node, counted message by message, for 12 bytes of vector."""
    per_piece = 12 / nodes
    if exchange == "all_gather":
        return sum(12 for other in range(nodes) if other != 0)
    to_owners = sum(per_piece for owner in range(nodes) if owner != 0)
    sums_to_all = sum(per_piece for other in range(nodes) if other != 0)
    return to_owners + sums_to_all


@pytest.mark.parametrize("nodes", [2, 3, 4, 6])
@pytest.mark.parametrize("exchange", ["all_gather", "two_phase"])
def test_link_bytes_are_those_of_the_messages(exchange, nodes):
    assert link_bytes(exchange, 12, nodes) == pytest.approx(sent(exchange, nodes))


def test_one_node_has_one_form_which_passes_over_memory():
    (only,) = predict(8e6, 1, 3, FAST)
    # three vectors are read and one is written, where a copy reads one and writes one
    assert only.seconds == pytest.approx(4 * 8e6 / (2 * 1e9))
    assert only.chosen
    assert only.link_bytes == 0


def test_a_rank_alone_in_its_node_sums_nothing_inside():
    (alone,) = predict(8e6, 1, 1, Machine(GBIT, local_latency_s=7e-6))
    assert alone.seconds == 7e-6


def test_slow_link_takes_the_bytes_through_it():
    found = times(16 * MB, 2, 2, Machine(GBIT))
    bound = 16 * MB / GBIT
    assert bound < found["all_gather", "none"] < 1.1 * bound
    assert bound < found["two_phase", "none"] < 1.1 * bound
    assert 0.5 * bound < found["all_gather", "bf16"] < 0.65 * bound
    assert 0.25 * bound < found["all_gather", "int8"] < 0.4 * bound
    assert found["all_gather", "topk"] < 0.1 * bound
    assert found["flat ring of a library", "none"] == pytest.approx(1.5 * bound, rel=0.01)


def test_times_grow_with_vector_nodes_and_latency():
    base = times(4 * MB, 3, 2, Machine(GBIT))
    for other in (
        times(8 * MB, 3, 2, Machine(GBIT)),
        times(4 * MB, 4, 2, Machine(GBIT)),
        times(4 * MB, 3, 2, Machine(GBIT, link_latency_s=1e-3)),
    ):
        assert all(other[form] > base[form] for form in base)


def test_two_phases_are_two_latencies():
    slow = Machine(link_bytes_per_s=1e15, link_latency_s=1.0, memory_bytes_per_s=1e15, local_latency_s=0.0)
    found = times(4.0, 4, 1, slow)
    assert found["all_gather", "none"] == pytest.approx(1.0)
    assert found["two_phase", "none"] == pytest.approx(2.0)


def test_compression_does_not_pay_on_a_fast_link():
    found = times(16 * MB, 2, 4, Machine(100 * GBIT))
    assert found["all_gather", "none"] < found["all_gather", "bf16"]
    assert found["all_gather", "none"] < found["all_gather", "int8"]


def test_fastest_first():
    seconds = [entry.seconds for entry in predict(16 * MB, 4, 2, Machine(GBIT))]
    assert seconds == sorted(seconds)
    assert len(seconds) == 6


@pytest.mark.parametrize(
    ("nodes", "compression", "want"),
    [
        (2, "none", ("all_gather", "none")),
        (3, "none", ("two_phase", "none")),
        (3, "bf16", ("all_gather", "bf16")),
        (4, "bf16", ("two_phase", "none")),
        (7, "int8", ("all_gather", "int8")),
        (8, "int8", ("two_phase", "none")),
        (64, "topk", ("all_gather", "topk")),
    ],
)
def test_fewest_bytes_are_chosen(nodes, compression, want):
    assert chosen_form(nodes, compression) == want
    chosen = [(p.exchange, p.compression) for p in predict(MB, nodes, 2, Machine(GBIT)) if p.chosen]
    assert want in chosen


def test_the_choice_is_the_reducers():
    for nodes, compression in itertools.product(range(2, 130), ("none", "bf16", "int8", "topk")):
        form, compress = cheapest_form(nodes, compressed_fraction(compression))
        assert chosen_form(nodes, compression) == (form, compression if compress else "none")


@pytest.mark.parametrize("compression", ["bf16", "int8", "topk"])
@pytest.mark.parametrize("topk_fraction", [0.01, 0.2])
def test_compressed_bytes_are_the_codecs(compression, topk_fraction):
    size = 1 << 20
    codec = make_codec(ReductionConfig(compression=compression, topk_fraction=topk_fraction), size)
    assert codec.nbytes / (4 * size) == pytest.approx(
        compressed_fraction(compression, topk_fraction), rel=1e-3
    )


@pytest.mark.parametrize(
    ("nbytes", "nodes", "ranks", "gbit"), [(0, 2, 2, 1), (8, 0, 2, 1), (8, 2, 0, 1), (8, 2, 2, -1)]
)
def test_nothing_is_refused(nbytes, nodes, ranks, gbit):
    with pytest.raises(ConfigError, match="above 0"):
        predict(nbytes, nodes, ranks, Machine(gbit * GBIT))
