"""A run in several attempts ends as one that was never stopped."""

import shutil
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import hpcrl.launch.rank as launch
from hpcrl.storage import checkpoint, read_table
from hpcrl.storage.components import COMPONENTS
from tests.mpi.resume_support import (
    BANDIT,
    CHAIN,
    IMPALA,
    NORMALIZED,
    PPO,
    RECURRENT,
    REPLAY,
    SLOW,
    attempt,
    cut_run,
    folder,
    half,
    numbers_of_sets,
    on_root,
    pipeline,
    replayed,
    shared_out,
    synchronous,
    weights,
    weights_of_whole,
)
from tests.mpi.support import come_together

ENVS = {"chain": CHAIN, "bandit": BANDIT, "slow": SLOW}
SHORT_CHAIN = CHAIN | {"kwargs": {"max_episode_steps": 9}}
DROPPED = [
    *[("synchronous", name, None) for name in ("algorithm", "counters", "actions", "envs")],
    *[("pipeline", name, None) for name in ("algorithm", "actions", "envs", "queue")],
    *[("synchronous", "algorithm", name) for name in ("parameters", "adam_exp_avg", "adam_exp_avg_sq")],
    ("synchronous", "algorithm", "adam_steps"),
    *[("synchronous", "counters", name) for name in ("updates", "env_steps")],
    *[("synchronous", "envs", name) for name in ("obs", "state/_state", "state/_elapsed")],
    ("ended", "envs", "state/episode/ended"),
    ("bandit", "envs", "state/_generators"),
    *[("normalized", "algorithm", name) for name in ("obs_count", "obs_squares")],
    ("normalized", "algorithm", "discounted_return_squares"),
    ("normalized", "envs", "discounted_return"),
    ("recurrent", "envs", "policy_state"),
    *[("replayed", "memory", name) for name in ("leaves", "random", "rows/reward", "inserted")],
    ("replayed", "limiter", "sampled"),
]
"""Settings, component and, where only one of its values is left out, that value's name."""
OF_THIS_SIZE = DROPPED[MPI.COMM_WORLD.size // 2 :: 3]
"""Each in a world of 1, 3 or 4 ranks, by its place in the list: what a run would miss does not depend on them."""


def settings_of(kind, size):
    if (
        kind == "ended"
    ):  # an episode has 4 env_steps, whatever is done, and a reset step: here after 6 x 9 of them
        chain = CHAIN | {"kwargs": {"max_episode_steps": 4}}
        return synchronous(size, env=chain, algorithm=PPO | {"unroll_length": 9})
    if kind == "pipeline":
        return pipeline(size, 1)
    if kind == "normalized":
        return synchronous(size, algorithm=PPO | {"normalize_returns": True}, **NORMALIZED)
    if kind == "replayed":
        return replayed(size)
    if kind == "recurrent":
        return synchronous(size, model=RECURRENT)
    return synchronous(size, env=BANDIT if kind == "bandit" else SHORT_CHAIN)


def check_cut_run(comm, settings, stops):
    with folder(comm) as path:
        assert cut_run(comm, path / "cut", settings, stops) == [75] * len(stops) + [0]
        assert weights(comm, path / "cut") == weights_of_whole(comm, settings)


@pytest.mark.parametrize("env", shared_out("chain", "bandit"))
def test_synchronous(comm, env):
    check_cut_run(comm, synchronous(comm.size, env=ENVS[env]), [2, 5, 9])


@pytest.mark.parametrize("kind", shared_out("synchronous", "max_lag 0"))
def test_running_moments_count_every_env_step_once(comm, kind):
    """However many learners, epochs, and attempts there are; and what is counted does not depend on them."""
    with half(comm) as world, folder(world) as path:
        settings = settings_of("normalized", world.size)
        if kind == "max_lag 0":
            algorithm = IMPALA | {"normalize_returns": True}
            settings = pipeline(world.size, 0, algorithm=algorithm, **NORMALIZED)
        assert cut_run(world, path, settings, [2, 5]) == [75, 75, 0]
        assert weights(world, path) == weights_of_whole(world, settings)
        on_root(world, check_moments, path)
        if kind == "max_lag 0":
            on_root(world, check_ratios, path)


def check_ratios(path):
    """Without lag each update sees observations as the actors did, whose policy is still its own."""
    updates = read_table(path, "updates")
    assert np.abs(updates["log_rho_mean"]).max() < 1e-6 > updates["approx_kl"].max()


def check_moments(path):
    """Env_step k of an episode pays k and is observed as k - 1; no trajectory is left out, wherever it was cut."""
    state, counters = {}, {}
    saved = checkpoint.newest(path)
    first = "learner-0" if saved.of_role("learner") else "worker-0"
    saved.restore(first, "algorithm", state.update)
    saved.restore(first, "counters", counters.update)
    count = counters["env_steps"]
    assert state["obs_count"] == state["discounted_return_count"] == count
    observed, returns = zip(*steps_of_counting(counters["updates"]), strict=True)
    assert len(observed) == count
    np.testing.assert_allclose(state["obs_mean"][0], np.mean(observed), rtol=1e-12)
    np.testing.assert_allclose(state["obs_squares"][0], np.var(observed) * count, rtol=1e-12)
    np.testing.assert_allclose(state["discounted_return_mean"], np.mean(returns), rtol=1e-6)
    np.testing.assert_allclose(state["discounted_return_squares"], np.var(returns) * count, rtol=1e-6)


def steps_of_counting(updates):
    """(observation, discounted return) of every valid env_step of 8 environments in `updates` unrolls of 8."""
    for index in range(8):
        step, ended, total, episode = 0, False, 0.0, index
        for _ in range(8 * updates):
            if ended:
                step, ended, total, episode = 0, False, 0.0, episode + 1
                continue
            total = 0.99 * total + step + 1
            yield step, total
            step += 1
            ended = step == (7 if episode % 2 else 5)


def test_recurrent_policies(comm):
    short = {"model": RECURRENT, "budget": {"env_steps": 400}}
    check_cut_run(comm, synchronous(comm.size, **short), [3])
    with half(comm) as world:
        check_cut_run(world, pipeline(world.size, 1, **short), [2])


def test_gradients_by_torch(comm):
    """As on GPUs: the algorithm leaves host memory, as far as it knows, and is saved from there."""
    check_cut_run(comm, synchronous(comm.size, reduction={"form": "torch"}), [4])


@pytest.mark.parametrize(
    ("max_lag", "env", "stops"),
    shared_out((0, "chain", [2, 5, 9]), (1, "chain", [2, 5, 9]), (1, "bandit", [5]), (1, "slow", [2, 5])),
)
def test_pipeline(comm, max_lag, env, stops):
    with half(comm) as world:
        check_cut_run(world, pipeline(world.size, max_lag, env=ENVS[env]), stops)


@pytest.mark.parametrize("sampling", ["prioritized", "uniform"])
def test_replayed(comm, sampling):
    with half(comm) as world:
        check_cut_run(world, replayed(world.size, replay=REPLAY | {"sampling": sampling}), [2, 5, 9])


@pytest.mark.parametrize("env", [SLOW, CHAIN], ids=["slow", "fast"])
def test_replayed_and_stopped_at_any_moment(comm, env):
    """While a checkpoint is under way, or batches are drawn ahead; no update is made twice, and the books agree."""
    cuts = {"every_seconds": None, "every_updates": 1 if env == SLOW else None}
    with half(comm) as world, folder(world) as path:
        settings = replayed(world.size, env=env, checkpoint=cuts, deterministic=False)
        for number in range(4):
            stop = {"stop_after_s": 0.05 + 0.05 * number} if env == SLOW else {"stop_at": 4 * number + 2}
            assert attempt(world, path, settings, resume="if-exists", **stop) in (0, 75)
        assert attempt(world, path, settings, resume="must") == 0
        on_root(world, check_replay_books, path, settings)


def check_replay_books(path, settings):
    """Each batch was drawn once, after what the limiter asks for, and the learners know what was inserted."""
    updates, rows = read_table(path, "updates"), read_table(path, "replay")
    assert updates["update"].tolist() == list(range(1, len(updates) + 1))
    assert set(updates["update"]) <= set(rows["update"])
    trained = rows[np.isin(rows["update"], updates["update"])]
    assert (trained["sampled"] == 5 * trained["update"]).all()
    last = trained[trained["update"] == updates["update"][-1]]
    assert updates["env_steps"][-1] == last["inserted"][-1] >= settings["budget"]["env_steps"]
    allowed = 0.5 * np.maximum(trained["inserted"] - REPLAY["min_size"], 0)
    assert np.abs(allowed - trained["sampled"]).max() <= max(5, 0.5 * 8 * 8)


@pytest.mark.parametrize("deterministic", shared_out(True, False))
def test_stopped_at_any_moment(comm, deterministic):
    """Also while a checkpoint is under way, which is given up then, or awaited where everything counts."""
    settings = {"checkpoint": {"every_seconds": None, "every_updates": 1}, "budget": {"env_steps": 500}}
    with half(comm) as world, folder(world) as path:
        settings = pipeline(world.size, 1, env=SLOW, deterministic=deterministic, **settings)
        codes = [
            attempt(world, path, settings, resume="if-exists", stop_after_s=0.03 + 0.017 * number)
            for number in range(4)
        ]
        assert set(codes) <= {0, 75}
        assert attempt(world, path, settings, resume="must") == 0
        updates = on_root(world, read_table, path, "updates")["update"].tolist()
        assert updates == list(range(1, len(updates) + 1))
        if deterministic:
            assert weights(world, path) == weights_of_whole(world, settings | {"checkpoint": {}})


@pytest.mark.parametrize("deterministic", shared_out(False, True))
def test_by_messages_alone(comm, deterministic):
    """As between nodes: marks, parts and trajectories travel by MPI."""
    settings = {"comm": {"transport": "messages"}, "checkpoint": {"every_seconds": None, "every_updates": 3}}
    with half(comm) as world, folder(world) as path:
        settings = pipeline(world.size, 1, env=SLOW, deterministic=deterministic, **settings)
        assert cut_run(world, path, settings, [2, 8]) == [75, 75, 0]
        if deterministic:
            assert weights(world, path) == weights_of_whole(world, pipeline(world.size, 1, env=SLOW))
        else:
            on_root(world, check_books, path, settings["ranks"]["actors"], 1, 4)


@pytest.mark.parametrize(("kind", "component", "value"), OF_THIS_SIZE)
def test_what_is_left_out_is_missed(comm, monkeypatch, kind, component, value):
    """Without this component, or value, the run ends otherwise: the tests above would see it."""
    with half(comm) as world:
        check_is_missed(world, monkeypatch, settings_of(kind, world.size), component, value)


def check_is_missed(comm, monkeypatch, settings, component, value=None):
    restore = checkpoint.Saved.restore

    def forgetful(saved, part, name, load):
        if name == component and value is None:
            return

        def load_rest(values):
            if name == component:
                nothing = np.zeros_like(values[value])
                values = values | {value: int(nothing) if isinstance(values[value], int) else nothing}
            load(values)

        restore(saved, part, name, load_rest)

    with folder(comm) as path:
        assert attempt(comm, path / "cut", settings, stop_at=6) == 75
        monkeypatch.setattr(checkpoint.Saved, "restore", forgetful)
        assert attempt(comm, path / "cut", settings, resume="must") == 0
        assert weights(comm, path / "cut") != weights_of_whole(comm, settings)


def test_what_compression_keeps_for_the_next_gradient(comm, monkeypatch):
    """Two nodes, as far as the world knows; alone a rank has nothing to compress."""
    nodes = ["a" if rank < (comm.size + 1) // 2 else "b" for rank in range(comm.size)]
    monkeypatch.setattr(launch, "open_world", partial(launch.open_world, nodes=nodes))
    compression = {"compression": "topk", "topk_fraction": 0.1, "warmup_updates": 0}
    settings = synchronous(comm.size, reduction=compression)
    check_cut_run(comm, settings, [2, 7])
    if comm.size > 1:
        check_is_missed(comm, monkeypatch, settings, "reducer")


def test_every_component_is_left_out_once(comm):
    """What compression keeps has the test before."""
    assert {component for _, component, _ in DROPPED} | {"reducer"} == COMPONENTS.keys()


def test_other_ranks_go_on_with_the_same_learner(comm):
    """From what two actors left, or two workers, to fewer and to more ranks of each kind; every env_step counted."""
    before, others = elastic_layouts(comm.size)
    with folder(comm) as path:
        assert attempt_on(comm, before, path / "first", stop_at=6) == 75
        for number, ranks in enumerate(others):
            run = path / str(number)
            on_root(comm, shutil.copytree, path / "first", run)
            assert attempt_on(comm, ranks, run, resume="must", stop_at=0) == 75
            on_root(comm, check_same_learner, run)
            assert attempt_on(comm, ranks, run, resume="must", stop_at=10) == 75
            assert attempt_on(comm, ranks, run, resume="must") == 0
            on_root(comm, check_elastic_run, run)


def elastic_layouts(size):
    def ranks(actors, replay, learners):
        return {"actors": actors, "replay": replay, "learners": learners}

    one, workers = ranks(1, 1, 1), [{"workers": count} for count in range(1, size + 1)]
    if size == 4:
        return ranks(2, 1, 1), [one, ranks(1, 1, 2), one | {"alone": True}]
    if size == 3:
        return one, [one | {"alone": True}]
    return workers[-1], workers[:-1] or workers


def attempt_on(comm, ranks, run_dir, **how):
    """As `attempt`, on as many of the ranks as are asked for; all return its exit code."""
    counts = {role: count for role, count in ranks.items() if role != "alone"}
    size = 1 if ranks.get("alone") else sum(counts.values())
    settings = (
        synchronous(size)
        if "workers" in counts
        else pipeline(comm.size, 1, deterministic=False, ranks=counts)
    )
    world = comm.Split(0 if comm.rank < size else 1, comm.rank)
    code = attempt(world, run_dir, settings, **how) if comm.rank < size else None
    world.Free()
    come_together(comm)
    return comm.bcast(code, 0)


def check_same_learner(path):
    learners = read_table(path, "learners")
    first, second = (learners[learners["attempt"] == attempt] for attempt in (1, 2))
    assert set(first["weights_sha256"]) == set(second["weights_sha256"])
    assert set(first["update"]) == set(second["update"])


def check_elastic_run(path):
    updates, lag = read_table(path, "updates"), read_table(path, "lag")
    assert updates["update"].tolist() == list(range(1, len(updates) + 1))
    assert int(lag["env_steps"].sum()) == updates["env_steps"][-1] >= 900
    assert lag["lag"].min() >= 0 and lag["lag"].max() <= 1
    events = read_table(path, "events")
    assert b"episode_restarted" not in events["kind"]


@pytest.mark.parametrize("kind", shared_out("max_lag 0", "max_lag 1", "synchronous"))
def test_every_periodic_set_leads_to_the_same_end(comm, kind):
    """As after a SIGKILL at any time: all that counts is the newest set that was complete."""
    periodic = {"checkpoint": {"every_seconds": None, "every_updates": 4, "keep": 100}}
    with half(comm) as world, folder(world) as path:
        make = synchronous(world.size) if kind == "synchronous" else pipeline(world.size, int(kind[-1]))
        assert attempt(world, path / "whole", make | periodic) == 0
        expected = weights_of_whole(world, make)
        assert weights(world, path / "whole") == expected
        sets = numbers_of_sets(world, path / "whole")
        assert len(sets) >= 3 and sets[0] < 9
        for number in sets[:-1]:
            on_root(world, cut_off, path / "whole", path / f"at{number}", number)
            assert attempt(world, path / f"at{number}", make, resume="must") == 0
            assert weights(world, path / f"at{number}") == expected


def cut_off(source, target, number):
    """A copy of the run whose newest set is that of update `number`."""
    shutil.copytree(source, target)
    for path in checkpoint.find_sets(target):
        if int(path.name) > number:
            shutil.rmtree(path)


@pytest.mark.parametrize("max_lag", shared_out(1, 3))
def test_no_trajectory_is_lost_or_trained_on_twice(comm, max_lag):
    """What the actors have sent was trained on, or waits in the newest set; over stops, too."""
    periodic = {"every_seconds": None, "every_updates": 2}
    with half(comm) as world, folder(world) as path:
        settings = pipeline(world.size, max_lag, deterministic=False, checkpoint=periodic)
        for stop, code in ((3, 75), (7, 75), (11, 75), (None, 0)):
            assert attempt(world, path, settings, resume="if-exists", stop_at=stop) == code
            on_root(world, check_obs, path)
        on_root(world, check_books, path, settings["ranks"]["actors"], max_lag)


def check_books(path, batch, max_lag, sets=5):
    edges, events = read_table(path, "edges"), read_table(path, "events")
    sent = int(edges["messages"][edges["stream"] == b"trajectory"].sum())
    updates, lag = read_table(path, "updates")["update"], read_table(path, "lag")
    assert sent == len(updates) * batch + waiting(path)
    assert updates.tolist() == list(range(1, len(updates) + 1))
    assert b"dropped_trajectory" not in events["kind"]
    assert (events["kind"] == b"checkpoint").sum() >= sets
    assert lag["lag"].min() >= 0 and lag["lag"].max() <= max_lag
    assert np.unique(lag["update"]).tolist() == updates.tolist()


def check_obs(path):
    """An environment that was stopped within a trajectory was saved with the observation of that very state."""

    def check(values):
        assert np.array_equal(values["obs"], np.eye(5)[values["state/_state"]])

    saved = checkpoint.newest(path)
    for part in saved.of_role("actor"):
        saved.restore(part, "envs", check)


def waiting(path):
    """Trajectories in the newest set."""
    saved, numbers = checkpoint.newest(path), []
    for part in [*saved.of_role("learner"), *saved.of_role("replay")]:
        saved.restore(part, "queue", lambda values: numbers.extend(values["number"]))
    assert len(set(numbers)) == len(numbers)
    return len(numbers)


def test_a_flipped_byte_means_the_set_before_and_the_same_end(comm):
    periodic = {"every_seconds": None, "every_updates": 3}
    with folder(comm) as path:
        settings = synchronous(comm.size, checkpoint=periodic)
        assert attempt(comm, path / "cut", settings, stop_at=10) == 75
        sets = numbers_of_sets(comm, path / "cut")
        on_root(comm, flip_a_byte, path / "cut" / "checkpoints" / f"{sets[-1]:012d}" / "worker-0.h5")
        assert attempt(comm, path / "cut", settings, resume="must") == 0
        assert weights(comm, path / "cut") == weights_of_whole(comm, synchronous(comm.size))
        notes = on_root(comm, notes_of, path / "cut")
        assert f"checkpoint damaged-{sets[-1]:012d}-1, which is damaged, was put aside" in notes
        assert any(note.startswith(f"resumed at update {sets[-2]} from ") for note in notes)


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def notes_of(path):
    events = read_table(path, "events")
    return [text.decode() for text in events["text"][events["kind"] == b"resumed"]]
