"""Codecs against independent vectors, slow references and the rules every codec keeps."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.comm.compress import Bf16Codec, Int8Codec, TopKCodec, make_codec
from hpcrl.config import ReductionConfig

pytestmark = pytest.mark.filterwarnings("error")

VECTORS = json.loads((Path(__file__).parent / "vectors" / "compression.json").read_text())
LARGEST = np.finfo(np.float32).max
TINY = 127 * 2.0**-126
"""Int8 blocks whose largest magnitude is below this wait in the residual."""
NAMES = ("bf16", "int8", "topk")
WITH_RESIDUAL = ("int8", "topk")


def make(name, size, exact=(), fraction=0.05):
    match name:
        case "bf16":
            return Bf16Codec(size, exact)
        case "int8":
            return Int8Codec(size, exact)
        case "topk":
            return TopKCodec(size, exact, fraction)


def message(codec, shard):
    out = np.full(codec.nbytes, 0xEE, np.uint8)
    codec.encode(shard, out)
    return out


def total(codec, messages, size):
    out = np.full(size, 7e7, np.float32)
    codec.sum_decoded(np.stack(messages), out)
    return out


def sent(codec, shard):
    """What the others get of this shard."""
    return total(codec, [message(codec, shard)], shard.size)


def residual(codec):
    return codec.state()["residual"]


def same_bits(left, right):
    return np.array_equal(left.view(np.int32), right.view(np.int32))


def normal(size, seed=0):
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


@st.composite
def shards(draw, count=1):
    """Shards of one size: random entries over many magnitudes, zeros, and a few arbitrary finite float32s."""
    size = draw(st.integers(0, 700))
    result = []
    for _ in range(count):
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        shard = rng.standard_normal(size) * 10.0 ** rng.uniform(-6, draw(st.integers(-6, 6)), size)
        shard = (shard * (rng.random(size) < draw(st.sampled_from((0.01, 0.5, 1))))).astype(np.float32)
        for value in draw(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=4)):
            if size:
                shard[draw(st.integers(0, size - 1))] = value / 8
        result.append(shard)
    return result


@st.composite
def exact_ranges(draw, size):
    edges = sorted(draw(st.lists(st.integers(0, size), max_size=6)))
    return list(zip(edges[::2], edges[1::2], strict=False))


def mask_of(exact, size):
    mask = np.zeros(size, bool)
    for start, stop in exact:
        mask[start:stop] = True
    return mask


def close(actual, expected):
    tolerance = VECTORS["tolerance"]
    np.testing.assert_allclose(actual, expected, rtol=tolerance["rel"], atol=tolerance["abs"])


def test_no_case_was_lost():
    kinds = [case["kind"] for case in VECTORS["cases"]]
    assert sorted(kinds) == ["int8_absmax"] * 3 + ["topk_error_feedback"]


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_oracle(case):
    inputs, expected = case["inputs"], case["expected"]
    if case["kind"] == "int8_absmax":
        x = np.array(inputs["x"], np.float32)
        decoded = sent(Int8Codec(x.size), x)
        close(decoded, expected["dequantised"])
        assert np.rint(decoded / expected["scale"]).tolist() == expected["q"]
        return
    grads = np.array(inputs["grads"], np.float32)
    codec = TopKCodec(grads.shape[1], (), inputs["k"] / grads.shape[1])
    sum_sent = np.zeros(grads.shape[1])
    for grad, step in zip(grads, expected["steps"], strict=True):
        decoded = sent(codec, grad)
        close(decoded, step["sent"])
        assert np.flatnonzero(decoded).tolist() == step["indices_sorted"]
        close(residual(codec), step["residual"])
        sum_sent += decoded
    close(sum_sent + residual(codec), expected["invariant_sum_sent_plus_residual"])


# What every codec keeps


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_exact_entries_keep_every_bit(name, data):
    (shard,) = data.draw(shards())
    exact = data.draw(exact_ranges(shard.size))
    mask = mask_of(exact, shard.size)
    bits = np.random.default_rng(1).integers(0, 2**32, mask.sum(), np.uint64).astype(np.uint32)
    shard[mask] = bits.view(np.float32)  # also NaNs and infinities
    assert same_bits(sent(make(name, shard.size, exact), shard)[mask], shard[mask])


@pytest.mark.parametrize("name", NAMES)
def test_exact_entries_are_summed_in_float32(name):
    exact = [(0, 3), (100, 130), (299, 301)]
    mask = mask_of(exact, 301)
    given_shards = [normal(301, seed) for seed in range(3)]
    codecs = [make(name, 301, exact) for _ in given_shards]
    messages = [message(codec, shard) for codec, shard in zip(codecs, given_shards, strict=True)]
    expected = (given_shards[0] + given_shards[1]) + given_shards[2]
    assert same_bits(total(codecs[1], messages, 301)[mask], expected[mask])


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_every_node_gets_the_same_bits(name, data):
    """The sum depends on the messages alone, and is that of the decoded messages, first to last."""
    given_shards = data.draw(shards(count=data.draw(st.integers(1, 5))))
    size = given_shards[0].size
    exact = data.draw(exact_ranges(size))
    codecs = [make(name, size, exact) for _ in given_shards]
    for _ in range(2):
        messages = [message(codec, shard) for codec, shard in zip(codecs, given_shards, strict=True)]
    sums = [total(codec, messages, size) for codec in codecs]
    decoded = [total(make(name, size, exact), [one], size) for one in messages]
    expected = decoded[0]
    for piece in decoded[1:]:
        expected = expected + piece
    assert all(same_bits(each, sums[0]) for each in sums)
    np.testing.assert_array_equal(sums[0], expected)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_shards_are_left_alone(name, data):
    (shard,) = data.draw(shards())
    before = shard.copy()
    message(make(name, shard.size), shard)
    assert same_bits(shard, before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 1, 2, 255, 256, 257, 511, 512, 513, 1000003])
def test_sizes(name, size):
    shard = normal(size)
    codec = make(name, size, fraction=0.5)
    decoded = sent(codec, shard)
    error = np.abs(decoded - shard)
    assert codec.nbytes % 64 == 0
    match name:
        case "bf16":
            assert (error <= np.abs(shard) / 256).all()
        case "int8":
            assert (error <= np.abs(shard).max(initial=0) / 253).all()
        case "topk":
            assert size // 2 <= np.count_nonzero(decoded) <= (size + 1) // 2
            assert not error[decoded != 0].any()


@pytest.mark.parametrize("name", NAMES)
def test_all_entries_exact(name):
    shard = normal(300)
    assert same_bits(sent(make(name, 300, [(0, 300)]), shard), shard)


@pytest.mark.parametrize("name", NAMES)
def test_zeros_stay_zeros(name):
    codec = make(name, 1000, [(3, 5)])
    for _ in range(3):
        assert not sent(codec, np.zeros(1000, np.float32)).any()
    assert not any(array.any() for array in codec.state().values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("node", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 700, 20000])
def test_a_value_that_is_not_finite_shows_on_every_node_and_is_not_kept(name, bad, node, size):
    codecs = [make(name, size) for _ in range(3)]
    for seed, codec in enumerate(codecs):
        message(codec, normal(size, seed))
    given_shards = [normal(size, seed) for seed in range(3)]
    given_shards[node][size // 2] = bad
    messages = [message(codec, shard) for codec, shard in zip(codecs, given_shards, strict=True)]
    assert all(not np.isfinite(total(codec, messages, size)[size // 2]) for codec in codecs)
    messages = [message(codec, normal(size)) for codec in codecs]
    assert all(np.isfinite(total(codec, messages, size)).all() for codec in codecs)
    for codec in codecs:
        assert all(np.isfinite(array).all() for array in codec.state().values())


@pytest.mark.parametrize("name", NAMES)
def test_a_value_in_an_exact_range_may_be_anything(name):
    shard = normal(600)
    shard[300:303] = np.nan, np.inf, 3e38
    codec, without = make(name, 600, [(300, 303)]), make(name, 600, [(300, 303)])
    decoded = sent(codec, shard)
    shard[300:303] = 0
    assert same_bits(np.delete(decoded, range(300, 303)), np.delete(sent(without, shard), range(300, 303)))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_continues_from_its_state(name, data):
    first, second = data.draw(shards(count=2))
    exact = data.draw(exact_ranges(first.size))
    codec, other = make(name, first.size, exact), make(name, first.size, exact)
    message(codec, first)
    state = codec.state()
    other.load_state(state)
    expected = sent(codec, second)
    assert same_bits(sent(other, second), expected)
    other.load_state(state)  # not changed by what came after
    assert same_bits(sent(other, second), expected)


@pytest.mark.parametrize("name", WITH_RESIDUAL)
def test_state_of_another_codec_is_refused(name):
    with pytest.raises(KeyError, match="residual"):
        make(name, 10).load_state(Bf16Codec(10).state())
    with pytest.raises(ValueError, match="11"):
        make(name, 10).load_state(make(name, 11).state())


@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_another_kind_are_refused(name):
    codec = make(name, 300)
    shard, out = normal(300), np.zeros(codec.nbytes, np.uint8)
    for wrong in (shard[:-1], shard.astype(np.float64), np.repeat(shard, 2)[::2], shard.reshape(1, -1)):
        with pytest.raises(ValueError, match="expected contiguous float32"):
            codec.encode(wrong, out)
        with pytest.raises(ValueError, match="expected contiguous float32"):
            codec.sum_decoded(out[None], wrong)
    for wrong in (out[:-1], out.view(np.int8), np.repeat(out, 2)[::2]):
        with pytest.raises(ValueError, match="expected contiguous uint8"):
            codec.encode(shard, wrong)
        with pytest.raises(ValueError, match="expected contiguous uint8"):
            codec.sum_decoded(wrong[None], shard)


@pytest.mark.parametrize("exact", [[(5, 3)], [(0, 11)], [(-1, 2)], [(4, 6), (5, 8)], [(5, 8), (1, 2)]])
def test_exact_ranges_in_disorder_are_refused(exact):
    with pytest.raises(ValueError, match="sorted"):
        Int8Codec(10, exact)


# Error feedback


@pytest.mark.parametrize("name", WITH_RESIDUAL)
@given(data=st.data())
def test_what_is_sent_and_what_is_kept_is_what_was_given(name, data):
    given_shards = data.draw(shards(count=3))
    size = given_shards[0].size
    exact = data.draw(exact_ranges(size))
    mask = mask_of(exact, size)
    codec = make(name, size, exact)
    for shard in given_shards:
        wanted = residual(codec) + shard
        decoded = sent(codec, shard)
        if name == "topk":
            np.testing.assert_array_equal(decoded + residual(codec), wanted)
        else:
            back = decoded.astype(np.float64) + residual(codec)
            assert (np.abs(back - wanted) <= np.abs(wanted) * 2.0**-23).all()
        assert not residual(codec)[mask].any()


@pytest.mark.parametrize("name", WITH_RESIDUAL)
def test_the_sum_of_what_is_sent_follows_the_sum_of_what_is_given(name):
    size, updates = 3000, 400
    codec = make(name, size)
    sum_given, sum_sent = np.zeros(size), np.zeros(size)
    gaps = []
    drift = normal(size, 99)
    for update in range(updates):
        shard = (0.3 * drift + normal(size, update)).astype(np.float32)
        sum_given += shard
        sum_sent += sent(codec, shard)
        gaps.append(np.abs(sum_given - sum_sent).max())
        np.testing.assert_allclose(sum_sent + residual(codec), sum_given, atol=1e-4 * (update + 1) ** 0.5)
    assert np.abs(sum_given).max() > 300
    assert max(gaps[200:]) < 1.3 * max(gaps[:200])  # does not grow with the number of updates
    assert gaps[-1] < (0.03 if name == "int8" else 40)


@pytest.mark.parametrize("name", WITH_RESIDUAL)
def test_the_residual_dies_out_when_nothing_is_added(name):
    shard = normal(3000)
    codec = make(name, 3000)
    sum_sent = sent(codec, shard).astype(np.float64)
    for _ in range(20):
        sum_sent += sent(codec, np.zeros(3000, np.float32))
    assert np.abs(residual(codec)).max() <= TINY
    np.testing.assert_allclose(sum_sent, shard, rtol=1e-6, atol=TINY)


# bf16


@given(st.lists(st.integers(0, 2**32 - 1), max_size=600))
def test_bf16_rounds_like_torch(patterns):
    shard = np.array(patterns, np.uint32).view(np.float32)
    expected = torch.from_numpy(shard.copy()).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(sent(Bf16Codec(shard.size), shard), expected)


def test_bf16_ties_and_borders():
    patterns = [0x3F808000, 0x3F818000, 0x3F807FFF, 0x7F7FFFFF, 0x00000001, 0x80000000, 0x00018000]
    rounded = [0x3F800000, 0x3F820000, 0x3F800000, 0x7F800000, 0x00000000, 0x80000000, 0x00020000]
    decoded = sent(Bf16Codec(len(patterns)), np.array(patterns, np.uint32).view(np.float32))
    assert decoded.view(np.uint32).tolist() == rounded


@pytest.mark.parametrize("pattern", [0x7F800001, 0x7F80FFFF, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000])
def test_bf16_keeps_every_nan(pattern):
    assert np.isnan(sent(Bf16Codec(1), np.array([pattern], np.uint32).view(np.float32)))[0]


# int8


@given(shards())
def test_int8_error_is_at_most_half_a_step_of_the_block(given_shards):
    (shard,) = given_shards
    decoded = sent(Int8Codec(shard.size), shard).astype(np.float64)
    for start in range(0, shard.size, 256):
        block = shard[start : start + 256].astype(np.float64)
        step = np.abs(block).max() / 127
        bound = 0.5 * step * (1 + 1e-4) if step >= 2.0**-126 else np.abs(block)
        assert (np.abs(decoded[start : start + 256] - block) <= bound).all()


def test_int8_blocks_do_not_reach_over_exact_ranges():
    """What follows an exact range has a scale of its own."""
    shard = np.full(20, 1e-3, np.float32)
    shard[:10] = 1e3
    assert np.abs(sent(Int8Codec(20, [(9, 10)]), shard) - shard).max() < 1e-3
    assert np.abs(sent(Int8Codec(20), shard) - shard).max() == np.float32(1e-3)


@pytest.mark.parametrize("largest", [LARGEST, -LARGEST, np.nextafter(LARGEST, np.float32(0))])
def test_int8_largest_values_stay_finite(largest):
    codec = Int8Codec(3)
    shard = np.array([largest, 1e38, 0], np.float32)
    decoded = sent(codec, shard)
    assert np.isfinite(decoded).all()
    assert np.isfinite(residual(codec)).all()
    np.testing.assert_allclose(decoded, shard, atol=LARGEST / 250)


def test_int8_subnormals_wait_until_they_are_large_enough():
    codec = Int8Codec(4)
    shard = np.array([1e-40, -3e-41, 1e-45, 0], np.float32)
    assert shard[:3].all()
    assert not sent(codec, shard).any()
    assert same_bits(residual(codec), shard)
    decoded = sent(codec, np.full(4, 1e-30, np.float32))
    np.testing.assert_allclose(decoded, 1e-30, rtol=1e-6)


def test_int8_a_block_that_is_not_finite_keeps_its_residual_and_the_others_are_sent():
    codec, undisturbed = Int8Codec(600), Int8Codec(600)
    for each in (codec, undisturbed):
        message(each, normal(600, 1))
    before = residual(codec)
    shard = normal(600, 2)
    expected = sent(undisturbed, shard)
    shard[300] = np.nan
    decoded = sent(codec, shard)
    bad = slice(256, 512)
    assert np.isnan(decoded[bad]).all()
    assert same_bits(residual(codec)[bad], before[bad])
    for good in (slice(0, 256), slice(512, 600)):
        assert same_bits(decoded[good], expected[good])
        assert same_bits(residual(codec)[good], residual(undisturbed)[good])


@pytest.mark.parametrize("name", WITH_RESIDUAL)
def test_finite_values_whose_sum_overflows_are_shown_and_not_kept(name):
    codec = make(name, 10, fraction=0.1)
    state = {"residual": np.full(10, LARGEST, np.float32)}
    codec.load_state(state)
    assert not np.isfinite(sent(codec, state["residual"])).any()
    assert same_bits(residual(codec), state["residual"])


# top-k


def largest_by_definition(values, count):
    """Positions of the `count` largest magnitudes that are not 0; the lowest positions among equals. Slow."""
    order = sorted(range(values.size), key=lambda i: (-abs(float(values[i])), i))
    return sorted(i for i in order[:count] if values[i] != 0)


@given(data=st.data(), fraction=st.sampled_from((0.001, 0.01, 0.1, 0.5)))
def test_topk_sends_the_largest(data, fraction):
    given_shards = data.draw(shards(count=2))
    size = given_shards[0].size
    exact = data.draw(exact_ranges(size))
    mask = mask_of(exact, size)
    codec = TopKCodec(size, exact, fraction)
    for shard in given_shards:
        rounded = np.where(np.abs(shard) > 1, np.rint(shard), shard).astype(np.float32)  # makes equals
        totals = np.where(mask, 0, residual(codec) + rounded).astype(np.float32)
        decoded = np.where(mask, 0, sent(codec, rounded))
        count = int(np.ceil(fraction * (size - mask.sum())))
        assert np.flatnonzero(decoded).tolist() == largest_by_definition(totals, count)


def matrix_with_a_large_column():
    matrix = normal(512 * 512).reshape(512, 512)
    matrix[:, 0] *= 1e3
    return matrix.reshape(-1)


@pytest.mark.parametrize(
    "shard",
    [normal(300_000), normal(300_000) ** 9, matrix_with_a_large_column(), np.ones(300_000, np.float32)],
    ids=["normal", "heavy_tails", "large_column", "all_equal"],
)
@pytest.mark.parametrize("fraction", [0.0001, 0.01, 0.5])
def test_topk_of_a_sample_fills_the_message_with_the_largest(shard, fraction):
    codec = TopKCodec(shard.size, (), fraction)
    capacity = int(np.ceil(fraction * shard.size))
    for _ in range(3):
        totals = residual(codec) + shard
        decoded = sent(codec, shard)
        chosen = np.flatnonzero(decoded)
        assert 0.5 * capacity < chosen.size <= capacity
        assert np.abs(totals[chosen]).min() >= np.abs(np.delete(totals, chosen)).max()
        np.testing.assert_array_equal(decoded + residual(codec), totals)


def test_topk_every_entry_has_its_turn():
    shard = np.ones(30_000, np.float32)
    codec = TopKCodec(shard.size, (), 0.1)
    sum_sent = sum(sent(codec, shard) for _ in range(12))
    assert (sum_sent >= 1).all()


def test_topk_a_shard_that_is_not_finite_waits_but_for_what_is_not_finite():
    codec = TopKCodec(600, (), 0.05)
    message(codec, normal(600, 1))
    before, shard = residual(codec), normal(600, 2)
    shard[[5, 300]] = np.nan, np.inf
    assert np.isnan(sent(codec, shard)).all()
    expected = before + shard
    expected[[5, 300]] = before[[5, 300]]
    assert same_bits(residual(codec), expected)


def test_topk_a_shard_that_few_entries_fill_sends_no_zeros():
    shard = np.zeros(100_000, np.float32)
    shard[[7, 99_999]] = 1, -2
    codec = TopKCodec(shard.size, (), 0.5)
    out = message(codec, shard)
    assert out[:4].view(np.int32)[0] == 2
    assert same_bits(total(codec, [out], shard.size), shard)


# By configuration


@pytest.mark.parametrize(("name", "kind"), list(zip(NAMES, (Bf16Codec, Int8Codec, TopKCodec), strict=True)))
def test_codec_of_the_configuration(name, kind):
    config = ReductionConfig(compression=name, topk_fraction=0.1)
    codec = make_codec(config, 5000, [(0, 2)])
    assert type(codec) is kind
    assert codec.nbytes == make(name, 5000, [(0, 2)], fraction=0.1).nbytes
    assert not any(array.any() for array in codec.state().values())
    shard = normal(5000)
    assert same_bits(sent(codec, shard)[:2], shard[:2])


def test_no_codec_without_compression():
    assert make_codec(ReductionConfig(), 100) is None


@pytest.mark.parametrize(("name", "share"), [("bf16", 0.501), ("int8", 0.255), ("topk", 0.0201)])
def test_messages_are_small(name, share):
    codec = make_codec(ReductionConfig(compression=name), 1 << 18)
    assert codec.nbytes <= share * 4 * (1 << 18)


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_numba_is_loaded_late():
    run_python("import sys, hpcrl.comm.compress; assert not {'numba', 'mpi4py'} & set(sys.modules)")


def test_nothing_is_compiled_after_make_codec():
    run_python(
        """
import numpy as np
from hpcrl.comm import compress_kernels
from hpcrl.comm.compress import make_codec
from hpcrl.config import ReductionConfig

for name in ("bf16", "int8", "topk"):
    codec = make_codec(ReductionConfig(compression=name), 1000, [(0, 2)])
    compiled = [k for k in vars(compress_kernels).values() if hasattr(k, "signatures")]
    before = [len(k.signatures) for k in compiled]
    assert sum(before) >= 1
    shard, messages = np.ones(1000, np.float32), np.zeros((3, codec.nbytes), np.uint8)
    for row in messages:
        codec.encode(shard, row)
    codec.sum_decoded(messages, shard)
    assert [len(k.signatures) for k in compiled] == before, name
"""
    )
