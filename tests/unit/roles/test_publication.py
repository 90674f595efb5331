"""Parameters that take a while to reach host memory are published later, in order, and with their own version."""

from types import SimpleNamespace

import numpy as np
import torch

from hpcrl.config import LagConfig
from hpcrl.roles import publication as module
from hpcrl.roles.publication import Publication


class SlowCopy:
    """Like that from a GPU: the values at `start`, ready when the test says so."""

    def __init__(self):
        self.arrived = False
        self.array = np.zeros(0, np.float32)

    def start(self, vector):
        self.arrived = False
        self.array = vector.numpy().copy()

    def ready(self):
        return self.arrived

    def wait(self):
        self.arrived = True


def open_publication(copy=None, role_rank=0, **lag):
    """A learner's publication, the vector it publishes, and what came out: (version, values) and versions sent."""
    published, sent = [], []
    publisher = SimpleNamespace(
        publish=lambda version, vector: published.append((version, vector.tolist())), close=lambda: None
    )
    sender = SimpleNamespace(
        send=lambda message: sent.append(int(message[0])), poll=lambda: None, close=lambda: None
    )
    vector = torch.zeros(2)
    session = SimpleNamespace(
        config=SimpleNamespace(lag=LagConfig(**lag)),
        world=SimpleNamespace(plan=SimpleNamespace(ranks=lambda role: [5]), sender=lambda rank, tag: sender),
        parameters=SimpleNamespace(publisher=publisher, poll=lambda: None),
    )
    learning = SimpleNamespace(algorithm=SimpleNamespace(parameters=SimpleNamespace(vector=vector)))
    publication = Publication(session, SimpleNamespace(role_rank=role_rank), learning)
    if copy is not None:
        publication._copy = copy
    return publication, vector, published, sent


def test_on_the_cpu_a_version_is_out_at_once():
    publication, vector, published, sent = open_publication()
    vector.fill_(3)
    publication.publish(7)
    publication.poll()
    assert published == [(7, [3, 3])] and sent == [7]


def test_a_version_is_out_when_its_copy_has_arrived():
    copy = SlowCopy()
    publication, vector, published, sent = open_publication(copy)
    vector.fill_(3)
    publication.publish(7)
    vector.fill_(4)
    publication.poll()
    assert published == sent == []
    copy.arrived = True
    publication.poll()
    publication.poll()
    assert published == [(7, [3, 3])] and sent == [7]


def test_no_version_is_left_out_when_the_next_one_comes_first():
    copy = SlowCopy()
    publication, vector, published, sent = open_publication(copy)
    for version in range(3):
        vector.fill_(version)
        publication.publish(version)
    copy.arrived = True
    publication.poll()
    assert published == [(0, [0, 0]), (1, [1, 1]), (2, [2, 2])] and sent == [0, 1, 2]


def test_nothing_is_published_after_the_end():
    copy = SlowCopy()
    publication, _, published, sent = open_publication(copy)
    publication.publish(0)
    publication.close()
    copy.arrived = True
    publication.poll()
    assert published == sent == []


def test_only_learner_0_publishes():
    publication, _, published, sent = open_publication(role_rank=1)
    publication.publish(0)
    assert published == sent == []


def test_by_number():
    publication, _, _, sent = open_publication(publish_every_updates=3, max_lag=2)
    for update in range(1, 8):
        publication.after(update)
    assert sent == [3, 6]


def test_by_number_or_by_the_clock_whichever_comes_first(monkeypatch):
    now = 100.0
    monkeypatch.setattr(module.time, "perf_counter", lambda: now)
    publication, _, _, sent = open_publication(publish_every_updates=4, max_lag=3, publish_every_seconds=10.0)
    for update, now in ((1, 109.0), (2, 111.0), (3, 120.0), (4, 120.5), (5, 130.0), (6, 130.5), (7, 140.0)):  # noqa: B007
        publication.after(update)
    assert sent == [2, 4, 6]
