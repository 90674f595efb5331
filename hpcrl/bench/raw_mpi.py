"""The MPI library used directly: what hpcrl's communication is measured against. The one module of bench with MPI."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

Bytes = npt.NDArray[np.uint8]

Comm = MPI.Intracomm
"""The type of communicators, for annotations elsewhere in bench."""

_DATA, _CREDIT = 1, 2
_WINDOW = 8
"""Messages of one sender under way."""
_CREDITS = 4
"""Messages that one credit note gives back."""
_RECEIVES = 4
"""Posted for each sender."""


def idle(fruitless: int) -> None:
    """Wait as a hand-written loop may: yield 20 times, then sleep. Local."""
    if fruitless < 20:
        os.sched_yield()
    else:
        time.sleep(50e-6)


def send_persistent(comm: Comm, dest: int, slots: Bytes, count: int) -> None:
    """Send `count` messages, a multiple of 4, from the rows of `slots` [8, nbytes]. Point-to-point."""
    sends = [comm.Send_init([slot, MPI.BYTE], dest, _DATA) for slot in slots]
    note = np.zeros(1, np.int32)
    credit = comm.Recv_init([note, MPI.INT32_T], dest, _CREDIT)
    credit.Start()
    sent = returned = 0
    while returned < count:
        while sent < min(count, returned + _WINDOW):
            _until(sends[sent % _WINDOW])
            sends[sent % _WINDOW].Start()
            sent += 1
        _until(credit)
        returned += int(note[0])
        if returned < count:
            credit.Start()
    for send in sends:
        _until(send)
        send.Free()
    credit.Free()


def receive_persistent(comm: Comm, sources: list[int], store: Bytes, count: int) -> None:
    """Take `count` messages of every source into the rows of `store` [any, nbytes]. Point-to-point."""
    landing = np.zeros((len(sources) * _RECEIVES, store.shape[1]), np.uint8)
    from_source = [source for source in sources for _ in range(_RECEIVES)]
    receives = [
        comm.Recv_init([row, MPI.BYTE], source, _DATA)
        for row, source in zip(landing, from_source, strict=True)
    ]
    MPI.Prequest.Startall(receives)
    note = np.full(1, _CREDITS, np.int32)
    notes: list[MPI.Request] = []
    taken = dict.fromkeys(sources, 0)
    total = fruitless = 0
    while total < count * len(sources):
        ready = MPI.Request.Testsome(receives)
        if not ready:
            fruitless += 1
            idle(fruitless)
            continue
        fruitless = 0
        for index in ready:
            store[total % len(store)] = landing[index]
            receives[index].Start()
            total += 1
            source = from_source[index]
            taken[source] += 1
            if taken[source] % _CREDITS == 0:
                notes.append(comm.Isend([note, MPI.INT32_T], source, _CREDIT))
    MPI.Request.Waitall(notes)
    for receive in receives:
        receive.Cancel()
        receive.Wait()
        receive.Free()


def send_pickled(comm: Comm, dest: int, message: Any, count: int) -> None:
    """Send an object `count` times, a few under way, as a first program with mpi4py would. Point-to-point."""
    pending: list[MPI.Request] = []
    for _ in range(count):
        if len(pending) == _WINDOW:
            pending.pop(0).wait()
        pending.append(comm.isend(message, dest, _DATA))
    for request in pending:
        request.wait()


def receive_pickled(comm: Comm, source: int, count: int) -> None:
    """Take `count` objects. Point-to-point."""
    for _ in range(count):
        comm.recv(source=source, tag=_DATA)


def one_way(cross: Comm, buffer: Bytes, other: int = 1) -> None:
    """Send `buffer` from rank 0 of `cross` to rank `other`, and a short answer back; other ranks do nothing."""
    answer = np.zeros(1, np.uint8)
    if cross.rank == 0:
        cross.Send([buffer, MPI.BYTE], other, _DATA)
        cross.Recv([answer, MPI.BYTE], other, _CREDIT)
    elif cross.rank == other:
        cross.Recv([buffer, MPI.BYTE], 0, _DATA)
        cross.Send([answer, MPI.BYTE], 0, _CREDIT)


def _until(request: MPI.Prequest) -> None:
    """Wait for a persistent request; one that was never started is complete."""
    fruitless = 0
    while not request.Test():
        fruitless += 1
        idle(fruitless)
