"""The hops: every name under which the time of a rank is counted, declared once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

Kind = Literal["compute", "communicate", "wait", "rest", "span"]
"""compute; communicate: moving data, or copying it to where it is moved from; wait: for another rank; rest: the run's
own upkeep. span: how long something lasted while the rank did other things: no part of its time."""


Timed = Callable[[str], AbstractContextManager[object]]
"""A hop's name -> a context in which it takes place; nullcontext where nobody takes the times."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One name."""

    kind: Kind
    meaning: str
    within: tuple[str, ...] = ()
    """Hops whose time its own lies inside of."""


HOPS: dict[str, Hop] = {
    "start": Hop(
        "rest", "from the start of the process to the role's first work: MPI, environments, a checkpoint"
    ),
    "grant.wait": Hop("wait", "an actor waits until lag contract or replay limiter let it collect"),
    "policy.fetch": Hop("wait", "an actor waits for the parameter version it was granted, and takes it"),
    "slot.wait": Hop("wait", "an actor waits for a buffer to write its trajectory to"),
    "algorithm.act": Hop("compute", "actions from observations"),
    "env.send": Hop("compute", "actions given to the environments"),
    "env.recv": Hop("compute", "the environments' steps, as far as nothing else was done meanwhile"),
    "trajectory.write": Hop("communicate", "a step copied to where its trajectory leaves from"),
    "algorithm.first_priorities": Hop("compute", "an actor's own priorities for the replay memory"),
    "algorithm.gradient": Hop("compute", "an actor's gradient, where gradients travel"),
    "stream.send": Hop("communicate", "a trajectory sealed and given to its replay rank"),
    "replay.insert": Hop("communicate", "a trajectory taken in by the replay rank"),
    "replay.sample": Hop("communicate", "a batch chosen and written to the learners"),
    "replay.update_priorities": Hop("compute", "new priorities of what was trained on"),
    "limiter.insert_wait": Hop("span", "actors were not let in: too few samples were drawn"),
    "limiter.sample_wait": Hop("span", "learners were not let in: too little was inserted"),
    "batch.wait": Hop("wait", "a learner waits for its batch"),
    "learners.meet": Hop(
        "wait", "a learner that carries parameters waits for the others before a collective"
    ),
    "learners.vote": Hop("wait", "the learners agree on stop and checkpoint; who is early waits here"),
    "algorithm.update": Hop("compute", "an update: losses, gradients and what lies between"),
    "reducer.mean_gradients": Hop(
        "communicate",
        "gradients summed over the learners, as far as not under the backward pass",
        ("algorithm.update",),
    ),
    "optimizer.step": Hop("compute", "the step of the optimizer", ("algorithm.update",)),
    "reducer.sum_counts": Hop("communicate", "what an update was trained on, summed over the learners"),
    "reducer.wait": Hop(
        "wait",
        "a learner waits inside a sum, for another one or for its data",
        (
            "start",
            "algorithm.update",
            "reducer.mean_gradients",
            "reducer.sum_counts",
            "learners.vote",
            "end.wait",
        ),
    ),
    "publisher.publish": Hop("communicate", "a learner hands over new parameters"),
    "records.send": Hop("communicate", "rows of the result file on their way to the rank that writes it"),
    "records.write": Hop("rest", "rows taken in and written to the result file"),
    "trace.write": Hop("rest", "the trace, where one is wanted"),
    "checkpoint.write": Hop("rest", "this role's part of a checkpoint"),
    "evaluation": Hop("compute", "the frozen policy's episodes, by step"),
    "role.wait": Hop("wait", "a replay rank has nothing to take in, to grant or to send"),
    "role.loop": Hop("rest", "between the hops: polling and bookkeeping"),
    "end.wait": Hop(
        "wait", "after the last update: until all that was under way is here, and for the others"
    ),
}
"""In the order of a transition's way."""
BETWEEN = ("start", "role.wait", "role.loop")
"""Hops of what no other hop covers."""


def unknown_hop(name: str) -> str:
    """What to say of a name that is no hop. Pure."""
    return f"{name!r} is no hop; the hops are {', '.join(HOPS)}"


def entered_hops() -> list[str]:
    """Hops that somebody enters, so that they can be delayed. Pure."""
    return [name for name, hop in HOPS.items() if hop.kind != "span" and name not in BETWEEN]
