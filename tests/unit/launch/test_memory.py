"""How much memory there is, and when a replay memory would be too much of it."""

import pytest

from hpcrl.comm.ranks import plan_ranks
from hpcrl.config import ConfigError, RunConfig
from hpcrl.data.replay_memory import predicted_bytes
from hpcrl.launch.memory import memory_limit, replay_bytes, too_large
from hpcrl.launch.rank import make_specs
from hpcrl.roles.memory_state import replay_layout

GB = 1 << 30


@pytest.mark.parametrize(
    ("lines", "files", "limit"),
    [
        ("0::/\n", {}, 8 * GB),
        ("0::/job/step\n", {"job/memory.max": f"{2 * GB}", "job/step/memory.max": "max"}, 2 * GB),
        ("0::/job/step\n", {"job/memory.max": f"{3 * GB}", "job/step/memory.max": f"{GB}"}, GB),
        ("0::/elsewhere\n", {"memory.max": f"{5 * GB}"}, 5 * GB),
        ("4:memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": f"{GB}"}, GB),
        ("4:cpu,memory:/job\n", {"memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}"}, 8 * GB),
    ],
)
def test_the_limit_is_the_smallest_of_the_node_and_its_groups(tmp_path, lines, files, limit):
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal:  {8 * GB // 1024} kB\nMemFree: 1 kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text(lines)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert memory_limit(tmp_path / "proc", tmp_path / "groups") == limit


def config(**replay):
    return RunConfig.parse(
        {
            "name": "x",
            "env": {"id": "counting", "engine": "toy", "num_envs": 7},
            "algorithm": {"name": "dqn"},
            "ranks": {"actors": 3, "replay": 2},
            "replay": replay,
        }
    )


def test_shards_of_a_node_count_together_and_files_do_not():
    run = config(capacity=7000)
    spec = make_specs(run, "cpu")[1]
    nodes = ["a", "b", "b", "a", "a", "a"]
    plan = plan_ranks(run, nodes)
    assert [nodes[rank] for rank in plan.ranks("replay")] == ["a", "a"]
    sizes = [predicted_bytes(replay_layout(run, spec, shard), run.replay) for shard in range(2)]
    assert replay_bytes(run, plan, nodes, "a", spec) == sum(sizes)
    assert sizes[0] > sizes[1] > 0
    assert replay_bytes(run, plan, nodes, "b", spec) == 0
    assert replay_bytes(config(memory_map="/tmp"), plan, nodes, "a", spec) == 0


def test_more_than_its_share_is_refused():
    assert too_large(config(), "a", 50, 100) == ""
    said = too_large(config(), "a", 51, 100)
    assert "replay.capacity=100000" in said and "replay.max_memory_share=0.5" in said
    assert too_large(config(max_memory_share=0.6), "a", 51, 100) == ""


@pytest.mark.parametrize("replay", [{"tolerance": 0.1}, {"frame_stack": 3}])
def test_what_the_memory_refuses_names_its_key(replay):
    run = config(**replay)
    spec = make_specs(run, "cpu")[1]
    nodes = ["a"] * 6
    with pytest.raises(ConfigError, match=rf"replay\.{next(iter(replay))}="):
        replay_bytes(run, plan_ranks(run, nodes), nodes, "a", spec)
