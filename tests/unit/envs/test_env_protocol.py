"""Call order, episode accounting and action preparation, by hand-made sequences."""

import numpy as np
import pytest

from hpcrl.data.specs import ActionSpec
from hpcrl.envs import CallOrder, EpisodeTracker, prepare_actions


def steps(tracker, table):
    """Feed rows (reward, terminated, truncated) of one environment; the observation is the row number."""
    return [
        tracker.step(np.array([[row]], np.float32), np.array([reward]), np.array([term]), np.array([trunc]))
        for row, (reward, term, trunc) in enumerate(table)
    ]


def column(results, name):
    return [getattr(step, name)[0].item() for step in results]


def test_valid_is_false_exactly_after_an_end():
    results = steps(EpisodeTracker(1), [(1, 0, 0), (1, 1, 0), (9, 0, 0), (1, 0, 1), (9, 0, 0), (1, 0, 0)])
    assert column(results, "valid") == [True, True, False, True, False, True]
    assert column(results, "reward") == [1, 1, 0, 1, 0, 1]


def test_full_return_and_length_only_where_an_episode_ends():
    results = steps(EpisodeTracker(1), [(1, 0, 0), (2, 1, 0), (9, 0, 0), (4, 0, 0), (8, 0, 1), (0, 0, 0)])
    assert column(results, "episode_return") == [0, 3, 0, 0, 12, 0]
    assert column(results, "episode_length") == [0, 2, 0, 0, 2, 0]


def test_terminal_state_wins_over_the_time_limit():
    (step,) = steps(EpisodeTracker(1), [(1, 1, 1)])
    assert step.terminated[0]
    assert not step.truncated[0]


def test_flags_of_a_reset_step_are_dropped():
    results = steps(EpisodeTracker(1), [(1, 1, 0), (1, 1, 1), (1, 0, 1)])
    assert column(results, "terminated") == [True, False, False]
    assert column(results, "truncated") == [False, False, True]
    assert column(results, "valid") == [True, False, True]
    assert column(results, "episode_length") == [1, 0, 1]


def test_episodes_of_one_step():
    results = steps(EpisodeTracker(1), [(3, 1, 0), (0, 0, 0), (5, 1, 0)])
    assert column(results, "episode_return") == [3, 0, 5]


def test_rows_are_independent_and_types_are_fixed():
    tracker = EpisodeTracker(3)
    obs = np.zeros((3, 2), np.uint8)
    first = tracker.step(obs, np.array([1.0, 2.0, 3.0]), np.array([1, 0, 0]), np.array([0, 0, 1]))
    second = tracker.step(obs, np.array([1.0, 2.0, 3.0]), np.array([0, 0, 0]), np.array([0, 1, 0]))
    assert first.episode_return.tolist() == [1, 0, 3]
    assert second.episode_return.tolist() == [0, 4, 0]
    assert second.valid.tolist() == [False, True, False]
    types = [
        str(array.dtype)
        for array in (
            second.obs,
            second.reward,
            second.terminated,
            second.truncated,
            second.valid,
            second.episode_return,
            second.episode_length,
        )
    ]
    assert types == ["uint8", "float32", "bool", "bool", "bool", "float64", "int64"]


def test_zero_environments():
    nothing = np.zeros(0)
    assert EpisodeTracker(0).step(np.zeros((0, 1)), nothing, nothing, nothing).valid.shape == (0,)


def test_returns_are_summed_in_float64():
    tracker = EpisodeTracker(1)
    no, yes = np.array([False]), np.array([True])
    tracker.step(np.zeros((1, 1)), np.array([2.0**24]), no, no)
    step = tracker.step(np.zeros((1, 1)), np.array([1.0]), yes, no)
    assert step.episode_return[0] == 2**24 + 1


def test_lost_lives_do_not_report_a_return():
    tracker = EpisodeTracker(1)
    yes, no = np.array([True]), np.array([False])
    obs = np.zeros((1, 1))
    life = tracker.step(obs, np.array([5.0]), yes, no, game_over=no)
    tracker.step(obs, np.array([0.0]), no, no, game_over=no)
    game = tracker.step(obs, np.array([5.0]), yes, no, game_over=yes)
    assert (life.episode_return[0], life.episode_length[0], life.terminated[0]) == (0, 0, True)
    assert (game.episode_return[0], game.episode_length[0]) == (10, 2)


def test_a_step_survives_the_next_one():
    """Arrays of a Step are not the tracker's own: the next step must not change them."""
    tracker = EpisodeTracker(1)
    yes, no = np.array([True]), np.array([False])
    first = tracker.step(np.zeros((1, 1)), np.array([1.0]), yes, no)
    tracker.step(np.zeros((1, 1)), np.array([1.0]), no, no)
    assert first.valid[0]
    assert first.terminated[0]
    assert first.episode_return[0] == 1


@pytest.mark.parametrize(
    ("calls", "missing"),
    [
        ("send", r"send\(\) out of turn: reset\(\) is missing"),
        ("recv", r"recv\(\) out of turn: reset\(\) and send\(\) are missing"),
        ("reset recv", r"recv\(\) out of turn: send\(\) is missing"),
        ("reset send send", r"send\(\) out of turn: recv\(\) of the previous env_step is missing"),
        ("reset send recv recv", r"recv\(\) out of turn: send\(\) is missing"),
        ("reset reset", r"already running; reset once"),
        ("reset send reset", r"already running; reset once"),
        ("close reset", r"closed"),
        ("reset close send", r"send\(\) out of turn: the environment is closed"),
        ("reset send close recv", r"recv\(\) out of turn: the environment is closed"),
    ],
)
def test_calls_out_of_turn_name_the_missing_call(calls, missing):
    order = CallOrder()
    *before, last = calls.split()
    for call in before:
        getattr(order, call)()
    with pytest.raises(RuntimeError, match=missing):
        getattr(order, last)()


def test_a_refused_call_changes_nothing():
    order = CallOrder()
    order.reset()
    with pytest.raises(RuntimeError):
        order.recv()
    order.send()
    with pytest.raises(RuntimeError):
        order.send()
    order.recv()


def test_close_is_true_once():
    order = CallOrder()
    assert [order.close(), order.close()] == [True, False]


def test_continuous_actions_are_clipped_into_a_fresh_array():
    spec = ActionSpec(kind="continuous", size=2, low=(-1.0, -np.inf), high=(1.0, 0.5))
    given = np.array([[-3.0, -1e6], [0.25, 7.0], [2.0, 0.0]])
    fresh = prepare_actions(spec, 3, given)
    assert fresh.tolist() == [[-1.0, -1e6], [0.25, 0.5], [1.0, 0.0]]
    assert fresh.dtype == np.float32
    assert given[0, 0] == -3.0


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        (ActionSpec(kind="discrete", size=2), np.array([0, 1], np.int64)),
        (ActionSpec(kind="continuous", size=1, low=(-1.0,), high=(1.0,)), np.zeros((2, 1), np.float32)),
    ],
)
def test_actions_are_copied_even_when_nothing_changes(spec, given):
    assert not np.shares_memory(prepare_actions(spec, 2, given), given)


@pytest.mark.parametrize("shape", [(), (2,), (4,), (3, 1)])
def test_wrong_number_of_actions(shape):
    with pytest.raises(ValueError, match=r"use \(3,\)"):
        prepare_actions(ActionSpec(kind="discrete", size=2), 3, np.zeros(shape, np.int64))


@pytest.mark.parametrize("bad", [-1, 2])
def test_discrete_actions_out_of_range(bad):
    with pytest.raises(ValueError, match="use 0 to 1"):
        prepare_actions(ActionSpec(kind="discrete", size=2), 2, np.array([0, bad]))
