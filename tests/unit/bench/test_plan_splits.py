"""How ranks are divided, and what a division needs."""

import pytest

from hpcrl.bench.plan.clocks import Clock, descendants, most_resident_bytes, read_clock
from hpcrl.bench.plan.model import Place, forecast
from hpcrl.bench.plan.report import findings
from hpcrl.bench.plan.sizes import checkpoint_bytes, sizes
from hpcrl.bench.plan.splits import smallest_world, splits, to_type
from hpcrl.config import ConfigError
from tests.unit.bench.plan_support import calibration, pipeline, replayed, synchronous


class TestSplits:
    def counts(self, config, num_ranks):
        return [(one.ranks.actors, one.ranks.replay, one.ranks.learners) for one in splits(config, num_ranks)]

    def test_every_rank_has_a_role(self):
        found = self.counts(pipeline(), 6)
        assert {sum(ranks) for ranks in found} == {6}
        assert (4, 1, 1) in found and (3, 1, 2) in found and (3, 2, 1) in found
        assert all(actors >= replay and actors >= learners for actors, replay, learners in found)

    def test_the_smallest_world(self):
        assert self.counts(pipeline(), 3) == [(1, 1, 1)]
        assert smallest_world(pipeline()) == 3 and smallest_world(synchronous()) == 1

    def test_one_rank_has_every_role(self):
        assert self.counts(pipeline(actors=4), 1) == [(1, 1, 1)]
        assert [one.ranks.workers for one in splits(synchronous(workers=3), 1)] == [1]

    def test_two_ranks_are_too_few(self):
        with pytest.raises(
            ConfigError, match=r"2 ranks cannot be divided .* use --ranks 3, the smallest world"
        ):
            splits(pipeline(), 2)

    def test_too_few_environments(self):
        with pytest.raises(ConfigError, match=r"env\.num_envs=2 is too few for \d+ acting ranks"):
            splits(pipeline(num_envs=2), 300)
        with pytest.raises(ConfigError, match=r"9 ranks are too many .* env\.num_envs=8"):
            splits(synchronous(), 9)

    def test_every_learner_has_something_of_a_batch(self):
        assert {learners for _, _, learners in self.counts(pipeline(batch_trajectories=1), 6)} == {1}

    def test_what_to_type(self):
        assert to_type(pipeline(actors=4), 6) == (
            "--set ranks.actors=4 --set ranks.replay=1 --set ranks.learners=1"
        )
        assert to_type(pipeline(), 1) == "--ranks 1"
        assert to_type(synchronous(workers=3), 3) == "--set ranks.workers=3"


BYTES = {
    "checkpoint/learner": 1e6,
    "checkpoint/replay": 8192 + 2e6,
    "checkpoint/actor": 8e3,
    "resident/actor": 3e8,
    "resident/learner": 4e8,
    "resident/replay": 1e8,
    "replay_bytes": 5e8,
}


class TestSizes:
    def test_a_replay_memory_fills(self):
        config = replayed().with_overrides(["replay.capacity=50000", "budget.env_steps=1000000"])
        cal = calibration(bytes=BYTES)
        assert checkpoint_bytes(config, cal) == pytest.approx(1e6 + 8e3 + 8192 + 2e6)

    def test_time_to_save_and_cost(self):
        config = replayed().with_overrides(["replay.capacity=50000", "budget.env_steps=1000000"])
        cal = calibration(bytes=BYTES, save_s=0.5, start_s=10.0, trajectories=1 / 32)
        chosen = forecast(config, cal, Place(1, 8))
        found = sizes(chosen, cal, 2)
        assert found.save_s == 0.5
        assert found.margin_s >= found.save_s + chosen.round_s
        assert found.signal_lead_s >= found.margin_s
        assert found.hours == pytest.approx((10 + 1e6 / chosen.env_steps_per_s) / 3600)
        assert found.node_hours == pytest.approx(2 * found.hours)
        assert found.resident_bytes == {"actor": 3e8, "replay": 6e8, "learner": 4e8}
        assert found.node_bytes == pytest.approx(13e8 / 2)
        assert found.kept_bytes == 3 * found.checkpoint_bytes

    def test_findings_name_what_to_change(self):
        config = pipeline().with_overrides(["checkpoint.margin_s=1"])
        cal = calibration(bytes=BYTES, save_s=30.0)
        chosen = forecast(config, cal, Place(1, 8))
        said = findings(chosen, sizes(chosen, cal, 1), memory_bytes=10**8)
        assert "the environments set the pace" in said[0]
        assert any("1.3 GB; there are 0.1 GB here" in one for one in said)
        assert any("--set checkpoint.margin_s=41" in one for one in said)
        assert len(findings(chosen, sizes(chosen, calibration(bytes=BYTES), 1), 10**10)) == 2


class TestClocks:
    """By the kernel's books, which a folder stands for."""

    def process(self, proc, pid, parent, tasks):
        folder = proc / str(pid)
        for number, schedstat in enumerate(tasks):
            (folder / "task" / str(pid + number)).mkdir(parents=True)
            (folder / "task" / str(pid + number) / "schedstat").write_text(schedstat)
        (folder / "stat").write_text(f"{pid} (a name) with ) in it) S {parent} 1 1")
        (folder / "status").write_text("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n")

    def test_threads_and_descendants_count(self, tmp_path):
        self.process(tmp_path, 10, 1, ["1000000000 500000000 7", "250000000 0 1"])
        self.process(tmp_path, 20, 10, ["2000000000 1000000000 7"])
        self.process(tmp_path, 30, 20, ["4000000000 0 7"])
        self.process(tmp_path, 40, 1, ["8000000000 8000000000 7"])
        assert sorted(descendants(10, tmp_path)) == [20, 30]
        clock = read_clock(10, tmp_path)
        assert (clock.cpu_s, clock.queued_s) == (7.25, 1.5)
        assert most_resident_bytes(10, tmp_path) == 2 << 20

    def test_what_has_ended_counts_nothing(self, tmp_path):
        clock = read_clock(10, tmp_path)
        assert (clock.cpu_s, clock.queued_s, most_resident_bytes(10, tmp_path)) == (0, 0, 0)

    def test_a_wait_for_a_core_is_no_part_of_a_span(self):
        passed = Clock(10.0, 3.0, 5.0) - Clock(4.0, 1.0, 2.0)
        assert (passed.wall_s, passed.cpu_s, passed.queued_s, passed.span_s) == (6.0, 2.0, 3.0, 3.0)
