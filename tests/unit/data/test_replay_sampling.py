"""Draws from the replay memory: probabilities, weights, priorities that come back late, sizes."""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcrl.config import ReplayConfig
from hpcrl.data.priorities import EPSILON
from hpcrl.data.replay_layout import ReplayLayout, predicted_bytes
from hpcrl.data.replay_memory import Sample
from hpcrl.data.specs import PRIORITY, trajectory_spec
from tests.unit.data.replay_support import (
    STATE,
    Envs,
    env_spec,
    everything,
    gathered,
    make_memory,
    ring_rows,
    sequences,
)

ORACLES = Path(__file__).parents[2] / "golden" / "oracles"
PER = json.loads((ORACLES / "per.json").read_text())["cases"]
PRIORITIZED = {"sampling": "prioritized", "alpha": 0.6}


def filled(envs, trajectories=6, **options):
    memory = make_memory(envs, **options)
    for version in range(trajectories):
        memory.insert(envs.trajectory(version=version))
    return memory


@pytest.mark.parametrize("case", PER, ids=lambda case: case["name"])
def test_weights_are_those_of_other_libraries(case):
    inputs, expected = case["inputs"], case["expected"]
    count = len(inputs["priorities"])
    envs = Envs(range(1), unroll=count, end_share=0)
    memory = filled(
        envs,
        1,
        capacity=max(inputs["capacity"], count + 1),
        config={"sampling": "prioritized", "alpha": inputs["alpha"]},
    )
    memory.update_priorities(
        everything(memory), np.array(inputs["priorities"], np.float32) - np.float32(EPSILON)
    )
    sample = memory.sample(400, inputs["beta"])
    weights = dict(
        zip(sample.slots.tolist(), (sample.weights * count ** -inputs["beta"]).tolist(), strict=True)
    )
    for slot, weight in weights.items():
        assert weight == pytest.approx(expected["weights_unnormalised"][slot], rel=1e-5)
    smaller = memory.sample(400, inputs["beta"], share=0.25)  # as likely as in a memory four times as large
    ratio = smaller.weights[0] / sample.weights[sample.slots == smaller.slots[0]][0]
    assert ratio == pytest.approx(0.25 ** -inputs["beta"], rel=1e-5)


@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
def test_entries_are_drawn_as_their_priorities_say_and_nothing_else_is(sampling):
    envs = Envs(range(3), end_share=0.3)
    memory = filled(envs, 12, capacity=3 * 17, n=2, config={"sampling": sampling, "alpha": 0.6})
    entries = everything(memory)
    rng = np.random.default_rng(3)
    td = rng.uniform(0.1, 4, len(entries.slots)).astype(np.float32)
    memory.update_priorities(entries, td)
    power = 0 if sampling == "uniform" else 0.6
    share = (td + EPSILON) ** power / ((td + EPSILON) ** power).sum()
    counts = np.zeros(memory.rings.place.total_rows)
    for _ in range(400):
        np.add.at(counts, memory.sample(20).slots, 1)
    assert counts.sum() == counts[entries.slots].sum()
    expected = share * 8000
    chi_square = ((counts[entries.slots] - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert chi_square <= freedom + 5 * math.sqrt(2 * freedom)


def test_a_memory_of_one_entry():
    envs = Envs(range(1), unroll=1, end_share=0)
    memory = filled(envs, 1, capacity=2)
    assert (memory.size, memory.entries) == (1, 1)
    assert set(memory.sample(5).slots) == {0}


def test_what_is_not_there_cannot_be_drawn_or_gathered():
    envs = Envs(range(1), unroll=2, end_share=0)
    memory = make_memory(envs, capacity=5, n=3)
    with pytest.raises(RuntimeError, match="without a single entry"):
        memory.sample(1)
    for _ in range(2):
        memory.insert(envs.trajectory())
    sample = memory.sample(2)
    for _ in range(3):
        memory.insert(envs.trajectory())
    with pytest.raises(RuntimeError, match="replaced between"):
        gathered(memory, sample, envs)


def test_a_late_priority_does_not_touch_what_has_replaced_its_entry():
    envs = Envs(range(2), end_share=0.1)
    memory = filled(envs, 8, capacity=2 * 14, n=2, config=PRIORITIZED)
    sample = everything(memory)
    memory.insert(envs.trajectory())
    leaves = memory.tree.leaves.copy()
    same = (memory.rings.generations(sample.slots) == sample.generations) & (leaves[sample.slots] > 0)
    assert 0 < same.sum() < len(same)
    memory.update_priorities(sample, np.full(len(same), 50, np.float32))
    changed = np.flatnonzero(memory.tree.leaves != leaves)
    assert set(changed) == set(sample.slots[same])
    assert memory.stale_updates == (~same).sum()
    total = memory.tree.total
    for _ in range(8):
        memory.insert(envs.trajectory())
    before = memory.tree.leaves.copy()
    memory.update_priorities(sample, np.full(len(same), 500, np.float32))
    assert (memory.tree.leaves == before).all()
    assert memory.tree.total != total


def test_bad_priorities_change_nothing_and_are_counted():
    envs = Envs(range(1), unroll=6, end_share=0)
    memory = filled(envs, 1, capacity=20, config=PRIORITIZED)
    slots = np.array([0, 1, 2, 3, 1])
    sample = Sample(slots, memory.rings.generations(slots), np.ones(5, np.float32))
    memory.update_priorities(sample, np.array([0, 2, np.nan, -1, np.inf], np.float32))
    first = (1 + EPSILON) ** 0.6
    np.testing.assert_allclose(
        memory.tree.leaves[:6], [EPSILON**0.6, (2 + EPSILON) ** 0.6, first, first, first, first]
    )
    assert (memory.refused_priorities, memory.stale_updates) == (3, 0)
    memory.update_priorities(sample, np.array([1, 2, 3, 4, 5], np.float32))
    assert memory.tree.leaves[1] == pytest.approx((5 + EPSILON) ** 0.6)  # the last one counts
    memory.insert(envs.trajectory())
    assert memory.tree.leaves[7] == pytest.approx((5 + EPSILON) ** 0.6)  # the largest so far
    assert memory.sample(3, 0.4).weights.min() > 0


def test_actors_give_first_priorities():
    envs = Envs(range(2), extra=(PRIORITY,))
    memory = filled(envs, 5, capacity=200, n=3, config=PRIORITIZED)
    for slot in everything(memory).slots:
        step = envs.columns[slot // memory.rings.place.rows].steps[slot % memory.rings.place.rows]
        assert memory.tree.leaves[slot] == pytest.approx((step["priority"] + EPSILON) ** 0.6)


def test_first_priorities_of_sequences_are_mixed_from_their_valid_steps():
    envs = Envs(range(2), extra=(PRIORITY, STATE), end_share=0.1)
    memory = filled(envs, 6, capacity=200, length=8, config=PRIORITIZED, priority_mix=0.8)
    for column in range(2):
        found = sequences(envs.columns[column], 4, 8, memory.rings.place.live, False)
        assert found
        for start, rows in found.items():
            td = [row["priority"] for row in rows if row["counts"]]
            mixed = 0.8 * max(td) + 0.2 * sum(td) / len(td)
            leaf = memory.tree.leaves[column * memory.rings.place.rows + start]
            assert leaf == pytest.approx((mixed + EPSILON) ** 0.6)


def test_rewards_are_clipped_then_scaled_then_summed():
    envs = Envs(range(1), unroll=6, end_share=0, extra=(STATE,))
    options = {"reward_clip": 0.5, "reward_scale": 3.0}
    memory = filled(envs, 2, capacity=30, n=3, **options)
    rewards = np.array([row["reward"] for row in ring_rows(envs.columns[0], 6)])
    trained = 3 * np.clip(rewards, -0.5, 0.5)
    assert (np.abs(rewards) > 0.5).any()
    got = gathered(memory, everything(memory), envs)
    want = [trained[i] + 0.9 * trained[i + 1] + 0.81 * trained[i + 2] for i in range(10)]
    np.testing.assert_allclose(got["reward"], want, rtol=1e-5)
    memory = make_memory(envs, capacity=30, length=6, **options)
    memory.insert(trajectory := envs.trajectory())
    got = gathered(memory, everything(memory), envs, (STATE,))
    want = 3 * np.clip(trajectory.fields["reward"][:, 0], -0.5, 0.5)
    np.testing.assert_allclose(got["reward"][:, 0], want, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"capacity": 2 * 6, "n": 3}, r"replay.capacity leaves 6 .* at least 7 x env.num_envs"),
        ({"capacity": 2 * 40, "length": 10}, r"algorithm.unroll_length=4"),
        ({"capacity": 80, "config": {"frame_stack": 4}}, r"replay.frame_stack=4, .* shape \[3\]"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options, keys):
    with pytest.raises(ValueError, match=keys):
        make_memory(Envs(range(2)), **options)


@pytest.mark.parametrize("frames", [0, 4])
@pytest.mark.parametrize("length", [0, 8])
def test_the_prediction_is_what_is_allocated(frames, length):
    envs = Envs(range(4), frames=frames, extra=(STATE, PRIORITY))
    memory = make_memory(envs, capacity=4000, length=length, config={"frame_stack": frames})
    assert predicted_bytes(memory.layout, memory.config) == pytest.approx(memory.nbytes, rel=0.01)


_GROWTH = """
import resource
import numpy as np
from hpcrl.data.replay_layout import predicted_bytes
from tests.unit.data.replay_support import Envs, make_memory
kept = []  # a memory that is freed meanwhile would count
for frames in (4, 0):
    envs = Envs(range(4), unroll=125, shape=(20, 20), dtype="uint8", frames=frames, end_share=0.01)
    options = {"config": {"frame_stack": frames}}
    trajectory = envs.trajectory()
    trajectory.fields["obs"][-1] = trajectory.fields["obs"][0]
    small = make_memory(envs, capacity=600, **options)
    small.insert(trajectory)
    small.update_priorities(small.sample(4), np.ones(4, np.float32))
    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
    before = resident()
    memory = make_memory(envs, capacity=100_000, **options)
    kept.append(memory)
    for _ in range(200):
        memory.insert(trajectory)
    print(resident() - before, predicted_bytes(memory.layout, memory.config))
"""


def test_what_a_process_grows_by_is_within_ten_percent_of_the_prediction():
    """10^5 env_steps, as stacks of 4 frames and as single ones of the same size: both cost one frame each."""
    ran = subprocess.run([sys.executable, "-c", _GROWTH], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    grown, predicted = np.array([line.split() for line in ran.stdout.splitlines()], float).T
    np.testing.assert_allclose(grown, predicted, rtol=0.1)
    assert (predicted < 1.15 * 100_000 * 400).all()


def test_a_stack_of_frames_costs_one_frame():
    spec = trajectory_spec(env_spec((4, 84, 84), "uint8"), 8, 8)
    layout = ReplayLayout(spec=spec, num_columns=8, capacity=100_000)
    stacked = predicted_bytes(layout, ReplayConfig(capacity=100_000, frame_stack=4))
    assert stacked < 1.01 * 100_000 * 84 * 84
    assert predicted_bytes(layout, ReplayConfig(capacity=100_000)) > 3.9 * stacked


def test_a_memory_in_files_is_equal_and_leaves_none(tmp_path):
    envs = [Envs(range(2), frames=2, dtype="uint8", seed=1) for _ in range(2)]
    folder = tmp_path / "new" / "folder"
    mapped = filled(envs[0], capacity=60, config={"frame_stack": 2, "memory_map": str(folder)})
    plain = filled(envs[1], capacity=60, config={"frame_stack": 2})
    assert list(folder.iterdir()) == []  # free again also after a crash
    first, second = (gathered(memory, everything(memory), envs[0]) for memory in (mapped, plain))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    with Path("/proc/self/maps").open() as maps:
        assert str(folder) in maps.read()
    mapped.close()
    del mapped
    with Path("/proc/self/maps").open() as maps:
        assert str(folder) not in maps.read()


def test_a_folder_without_room_is_refused(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limit[1]))
    try:
        with pytest.raises(ValueError, match=r"replay.memory_map=.*another folder"):
            make_memory(Envs(range(2)), capacity=100_000, config={"memory_map": str(tmp_path)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"replay.memory_map"):
        make_memory(Envs(range(2)), capacity=100, config={"memory_map": str(tmp_path / "file")})
