import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.data.admission import Admission, still_in_time
from hpcrl.data.reuse import Reuse
from tests.unit.data.simulation import ContractBrokenError, Setup, Simulation

SPEEDS = st.sampled_from((0.1, 0.5, 1.0, 10.0))


@st.composite
def setups(draw, deterministic):
    lag_when_new = draw(st.sampled_from((0, 1) if deterministic else (0, 1, 2, 8)))
    publish_every = 1 if deterministic else draw(st.integers(1, min(3, lag_when_new + 1)))
    batches, uses = draw(st.sampled_from(((1, 1), (1, 1), (1, 2), (2, 2), (3, 2), (2, 4))))
    shards = draw(st.lists(st.lists(SPEEDS, min_size=1, max_size=4).map(tuple), min_size=1, max_size=3))
    mortal = not deterministic and len(shards[0]) > 1
    return Setup(
        max_lag=lag_when_new + (uses - 1) * batches,
        reuse=(batches, uses),
        batch=draw(st.integers(1, 7)),
        actor_times=tuple(shards),
        death=draw(st.sampled_from((None, 0.2, 7.0, 60.0))) if mortal else None,
        update_time=draw(st.sampled_from((0.05, 1.0, 20.0))),
        publish_every=publish_every,
        overdue="wait" if deterministic else draw(st.sampled_from(("wait", "drop"))),
        deterministic=deterministic,
        grants_per_actor=draw(st.integers(2, 4)),
        first_version=publish_every * draw(st.sampled_from((0, 0, 5))),
        pause=draw(st.sampled_from((None, (5.0, 300.0)))),
        seed=draw(st.integers(0, 2**32)),
    )


def run(setup):
    """The contract is checked by the simulation itself; it raises."""
    simulation = Simulation(setup).run()
    assert len(simulation.lags) == setup.updates * setup.batch * len(setup.actor_times)
    assert set(simulation.uses.values()) <= set(range(1, setup.reuse[1] + 1))
    assert simulation.most_grants_held <= setup.grants_per_actor
    return simulation


@settings(max_examples=150, deadline=None)
@given(setups(deterministic=False))
def test_never_too_old_always_progress_first_in_first_out(setup):
    run(setup)


@settings(max_examples=75, deadline=None)
@given(setups(deterministic=True))
def test_deterministic_batches_are_grants_in_order_with_fixed_versions(setup):
    simulation = run(setup)
    late = simulation.lags[setup.lag_when_new * setup.batch * len(setup.actor_times) :]
    assert max(late) == setup.max_lag and min(late) >= setup.lag_when_new
    assert setup.reuse != (1, 1) or set(late) == {setup.max_lag}


STRAGGLERS = Setup(max_lag=2, batch=1, actor_times=((10.0, 10.0, 0.1),), update_time=0.05)


def test_two_stragglers_cannot_both_be_put_off_to_the_last_moment():
    assert max(run(STRAGGLERS).lags) == 2


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("overdue", ["wait", "drop"])
def test_a_paused_actor_that_wakes_up_later(overdue, seed):
    setup = Setup(
        max_lag=2,
        batch=2,
        actor_times=((1.0, 1.0, 1.0),),
        update_time=0.1,
        overdue=overdue,
        pause=(10.0, 40.0),
        updates=200,
        seed=seed,
    )
    shard = run(setup).shards[0]
    assert bool(shard.refused) == (overdue == "drop")
    last = [number for batch in shard.batches[-20:] for number in batch]
    assert {shard.granted[number].actor for number in last} == {0, 1, 2}


@pytest.mark.parametrize("overdue", ["wait", "drop"])
def test_others_do_what_a_dead_actor_held(overdue):
    setup = Setup(
        max_lag=1, batch=2, actor_times=((5.0, 1.0, 1.0),), overdue=overdue, death=20.0, updates=100
    )
    shard = run(setup).shards[0]
    assert shard.lost and shard.admission.dropped >= len(shard.lost)
    last = [number for batch in shard.batches[-20:] for number in batch]
    assert {shard.granted[number].actor for number in last} == {1, 2}


def test_nothing_is_dropped_unless_asked_for():
    setup = Setup(max_lag=1, batch=3, actor_times=((10.0, 0.1, 0.1, 0.1),), update_time=0.05)
    assert run(setup).shards[0].admission.dropped == 0


def test_a_slow_learner_holds_the_actors_back():
    setup = Setup(max_lag=2, batch=3, actor_times=((0.1,) * 4,), update_time=50.0)
    assert 0 < run(setup).most_waiting <= (setup.max_lag + 1) * setup.batch


def test_max_lag_0_trains_only_on_the_newest_parameters():
    assert set(run(Setup(max_lag=0, batch=4, actor_times=((1.0, 0.2),))).lags) == {0}


def test_max_lag_1_reaches_lag_1_and_no_more():
    assert set(run(Setup(max_lag=1, batch=2, actor_times=((0.2, 0.2),), update_time=2.0)).lags) == {0, 1}


# What protects the contract, removed piece by piece: each must be seen.


class OneGrantTooMany(Admission):
    def next_grant(self):
        self.max_lag += 1
        grant = super().next_grant()
        self.max_lag -= 1
        return grant


class WaitsForNobody(Admission):
    def _would_be_overdue_after(self, update, taken):
        return False


class WaitsOnlyForWhatIsOverdueNow(Admission):
    def _would_be_overdue_after(self, update, taken):
        return any(grant.version + self.max_lag <= update for grant in self._under_way.values())


class DeadlineOneLater(Admission):
    def _deadline(self, grant):
        return super()._deadline(grant) + 1


class NewestFirst(Admission):
    def take_batch(self, update):
        self._arrived = {-number: grant for number, grant in self._arrived.items()}
        numbers = super().take_batch(update)
        self._arrived = {-number: grant for number, grant in self._arrived.items()}
        return numbers and [-number for number in numbers]


class OrderOfArrival(Admission):
    def take_batch(self, update):
        self.deterministic = False
        numbers = super().take_batch(update)
        self.deterministic = True
        return numbers


class TakesThemAgain(Admission):
    def take_batch(self, update):
        before = dict(self._arrived)
        numbers = super().take_batch(update)
        self._arrived = before
        return numbers


class OneGrantTooFew(Admission):
    def next_grant(self):
        self.max_lag -= 1
        grant = super().next_grant()
        self.max_lag += 1
        return grant


class ForgetsDrops(Admission):
    def drop_overdue(self, update):
        numbers = super().drop_overdue(update)
        self.dropped = 0
        return numbers


class NeverDrops(Admission):
    def drop_overdue(self, update):
        return []


FAST_LEARNER = Setup(max_lag=1, batch=2, actor_times=((10.0, 0.1, 0.1, 0.1),), update_time=0.05)
SLOW_LEARNER = Setup(max_lag=1, batch=2, actor_times=((0.1, 0.2, 0.3),), update_time=5.0)
DROPPING = Setup(max_lag=1, batch=2, actor_times=((10.0, 0.1, 0.1),), update_time=0.05, overdue="drop")
REUSED = Setup(max_lag=5, reuse=(2, 3), batch=2, actor_times=((10.0, 0.1, 0.1, 0.1),), update_time=0.05)
IN_ORDER = Setup(max_lag=1, batch=3, actor_times=((10.0, 0.1),), update_time=0.05, deterministic=True)
LOOSE = Setup(max_lag=8, batch=2, actor_times=((0.1, 0.2, 0.3),), update_time=5.0, grants_per_actor=9)
STRICT = Setup(max_lag=0, batch=2, actor_times=((1.0, 1.0),))


@pytest.mark.parametrize(
    ("mutant", "setup", "complaint"),
    [
        (OneGrantTooMany, SLOW_LEARNER, "nothing moves"),
        (WaitsForNobody, FAST_LEARNER, r"lag \d+ > 1"),
        (WaitsOnlyForWhatIsOverdueNow, STRAGGLERS, r"lag \d+ > 2"),
        (DeadlineOneLater, FAST_LEARNER, r"lag \d+ > 1"),
        (DeadlineOneLater, REUSED, r"lag \d+ > 5"),
        (NewestFirst, LOOSE, "passes over the older"),
        (OrderOfArrival, IN_ORDER, "has grants"),
        (TakesThemAgain, SLOW_LEARNER, "nothing moves|not made of what is here"),
        (OneGrantTooFew, STRICT, "nothing moves"),
        (ForgetsDrops, DROPPING, "nothing moves|not counted"),
        (NeverDrops, DROPPING, r"lag \d+ > 1"),
    ],
)
def test_the_simulation_sees_a_broken_admission(mutant, setup, complaint):
    run(setup)
    with pytest.raises(ContractBrokenError, match=complaint):
        for seed in range(20):
            Simulation(Setup(**{**setup.__dict__, "seed": seed}), mutant).run()


def test_grants_go_to_whoever_holds_fewest():
    admission = Admission(batch=4, max_lag=0, actors=2, grants_per_actor=2)
    grants = [admission.next_grant() for _ in range(5)]
    assert [grant and (grant.number, grant.actor) for grant in grants] == [
        (0, 0),
        (1, 1),
        (2, 0),
        (3, 1),
        None,
    ]
    admission.arrive(2)
    assert admission.next_grant() is None  # the bound, although actor 0 has room
    admission.publish(1)
    assert admission.next_grant().actor == 0
    assert (admission.under_way, admission.waiting) == (4, 1)


def test_an_older_version_changes_nothing():
    admission = Admission(batch=1, max_lag=0, actors=1, grants_per_actor=2)
    admission.publish(3)
    admission.publish(2)
    assert admission.next_grant().version == 3


def test_given_up_trajectories_count_against_their_actor_until_they_come():
    admission = Admission(batch=1, max_lag=0, actors=1, grants_per_actor=2, overdue="drop")
    assert admission.next_grant().number == 0
    admission.publish(1)
    assert admission.next_grant().number == 1
    assert admission.drop_overdue(1) == []
    assert (admission.dropped, admission.overdue_under_way) == (1, {0: 1})
    assert admission.next_grant() is None  # two are with the actor, though one is given up
    assert not admission.arrive(0)
    assert admission.next_grant().number == 2
    assert not admission.arrive(0)  # a second time frees nothing
    assert admission.next_grant() is None


def test_what_has_arrived_too_early_for_its_update_is_dropped_and_told():
    admission = Admission(batch=2, max_lag=0, actors=1, grants_per_actor=2, overdue="drop")
    admission.next_grant()
    assert admission.arrive(0)
    assert admission.drop_overdue(0) == []
    assert admission.drop_overdue(1) == [0]
    assert (admission.dropped, admission.waiting, admission.overdue_under_way) == (1, 0, {})


def test_actors_that_hold_equally_many_take_turns():
    admission = Admission(batch=1, max_lag=0, actors=3, grants_per_actor=2)
    actors = []
    for update in range(7):
        grant = admission.next_grant()
        actors.append(grant.actor)
        assert admission.arrive(grant.number)
        assert admission.take_batch(update) == [grant.number]
        admission.publish(update + 1)
    assert actors == [0, 1, 2, 0, 1, 2, 0]


def resumed(waiting, *, batch=2, max_lag=1, actors=2, deterministic=True, first=5, reuse=(1, 1)):
    return Admission(
        batch=batch,
        max_lag=max_lag,
        actors=actors,
        grants_per_actor=4,
        deterministic=deterministic,
        reuse=Reuse(*reuse, first),
        waiting=waiting,
    )


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_resumed_queue_goes_on_where_it_was(deterministic):
    """At update 5, two trajectories a batch: those of updates 5 and 6 were granted, under versions 4 and 5."""
    admission = resumed([4, 4, 5, 5], deterministic=deterministic)
    assert admission.waiting == 4 and admission.under_way == 0
    assert admission.next_grant() is None  # (5 + 1 + 1) * 2 are granted
    assert admission.take_batch(5) == [10, 11]
    admission.publish(6)
    grant = admission.next_grant()
    assert (grant.number, grant.version) == (14, 6)
    assert admission.take_batch(6) == [12, 13]
    assert admission.take_batch(7) is None


def test_a_resumed_queue_that_was_not_full_is_filled_up():
    admission = resumed([4, 4, 5])
    grant = admission.next_grant()
    assert (grant.number, grant.version, grant.actor) == (13, 5, 1)
    assert admission.next_grant() is None


def test_actors_go_on_in_turn_over_a_resume():
    """The third trajectory of three actors comes from the same actor, whether the run was cut before it or not."""
    whole = resumed([], batch=1, actors=3, first=0)
    actors = []
    for update in range(10):
        grant = whole.next_grant()
        actors.append(grant.actor)
        whole.arrive(grant.number)
        whole.publish(update)
    cut = resumed([], batch=1, actors=3, first=8)
    assert [cut.next_grant().actor for _ in range(2)] == actors[8:]


@pytest.mark.parametrize(("max_lag", "expected"), [(0, []), (1, [2, 3])])
def test_before_a_cut_only_what_a_resumed_run_could_not_make_is_granted(max_lag, expected):
    """At version 1, two trajectories a batch: those of update 1 under version 0 are the last of that version."""
    admission = resumed([], max_lag=max_lag, first=0)
    for _ in range(2):
        admission.arrive(admission.next_grant().number)
    assert admission.take_batch(0) == [0, 1]
    admission.publish(1)
    granted = []
    while (grant := admission.next_grant_before_cut()) is not None:
        granted.append(grant.number)
        assert grant.version == 0
    assert granted == expected
    assert admission.next_grant() is not None


def test_before_a_cut_nothing_has_to_be_granted_where_order_does_not_count():
    assert resumed([], deterministic=False).next_grant_before_cut() is None


def test_what_waits_is_known_with_its_version():
    admission = resumed([4, 4, 5])
    assert [(grant.number, grant.version) for grant in admission.waiting_grants] == [
        (10, 4),
        (11, 4),
        (12, 5),
    ]


@pytest.mark.parametrize(
    ("versions", "max_lag", "kept"),
    [
        ([4, 4, 5, 5], 1, [0, 1, 2, 3]),
        ([4, 4, 5, 5], 0, [2, 3]),  # 4 is too old; the others take their place
        ([5, 5, 5], 0, [0, 1]),  # the third would be trained on at update 6
        ([3, 4, 4, 4, 4], 1, [1, 2]),
        ([], 2, []),
    ],
)
def test_what_would_be_too_old_does_not_wait(versions, max_lag, kept):
    assert still_in_time(versions, reuse=Reuse(first=5), batch=2, max_lag=max_lag) == kept
