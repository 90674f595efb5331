"""Between host memory and a device: batches in, parameters out, on streams beside the one that computes.

A GPU copies to and from page-locked ("pinned") memory while it computes and while the CPU goes on; from other memory
the CPU would wait for every copy. On the CPU nothing is copied at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]


class BatchStaging:
    """Puts the fields of one batch after the other on a device. Local."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in_place = device.type == "cpu"
        self._stream = _new_stream(device) if device.type == "cuda" else None
        self._rooms: dict[str, tuple[Tensor, Tensor]] = {}
        """Per field: pinned host memory, and memory on the device."""

    def stage(self, parts: Mapping[str, Sequence[Array]]) -> tuple[dict[str, Array], dict[str, Tensor]]:
        """Join the parts of each field along axis 1: in host memory, and on the device.

        parts: name -> arrays [T, C_i, ...] of one dtype, at least one; they may change afterwards, unless the device is
        the CPU, where a single part is the result itself. Both results are valid until the next `stage`; those on the
        device may be used on the current stream at once. Waits only for the copies of the call before.
        """
        if self._in_place:
            joined = {name: _join(arrays) for name, arrays in parts.items()}
            return joined, {name: torch.from_numpy(array) for name, array in joined.items()}
        if self._stream is not None:
            self._stream.synchronize()  # the pinned memory of the batch before has been read
            self._stream.wait_stream(torch.cuda.current_stream(self._device))  # and its copy been used
        host, fields = {}, {}
        for name, arrays in parts.items():
            pinned, there = self._room(name, arrays)
            host[name] = np.concatenate(arrays, axis=1, out=pinned.numpy())
            with torch.cuda.stream(self._stream):
                fields[name] = there.copy_(pinned, non_blocking=True)
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return host, fields

    def _room(self, name: str, arrays: Sequence[Array]) -> tuple[Tensor, Tensor]:
        """Memory for a joined field; the same as long as the shape is."""
        first = arrays[0]
        shape = (first.shape[0], sum(array.shape[1] for array in arrays), *first.shape[2:])
        room = self._rooms.get(name)
        if room is None or room[0].shape != shape:
            dtype = torch.from_numpy(np.empty(0, first.dtype)).dtype
            pinned = torch.empty(shape, dtype=dtype, pin_memory=self._stream is not None)
            room = self._rooms[name] = (
                pinned,
                torch.empty_like(pinned, device=self._device, pin_memory=False),
            )
        return room


class HostCopy:
    """The values of a vector, brought from its device to host memory while both go on working. Local.

    Attributes:
        array: float32 [size], the values at the last `start`, once `ready`; the vector itself where that is on the CPU.
    """

    def __init__(self) -> None:
        self.array: npt.NDArray[np.float32] = np.zeros(0, np.float32)
        self._way: tuple[Tensor, torch.cuda.Stream, torch.cuda.Event] | None = None
        """Pinned memory, the stream that fills it, and the event after that."""

    def start(self, vector: Tensor) -> None:
        """Begin, with a vector of one size; never waits. `array` changes.

        The vector may be written to at once, on the current stream.
        """
        if vector.device.type == "cpu":
            self.array = vector.numpy()
            return
        if self._way is None:
            pinned = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._way = (pinned, _new_stream(vector.device), event)
        pinned, stream, event = self._way
        values = vector.clone()  # on the device: what follows need not wait for the slow copy
        stream.wait_stream(torch.cuda.current_stream(vector.device))
        with torch.cuda.stream(stream):
            pinned.copy_(values, non_blocking=True)
            values.record_stream(stream)
            event.record(stream)
        self.array = pinned.numpy()

    def ready(self) -> bool:
        """Whether `array` holds the values. Never waits."""
        return self._way is None or bool(self._way[2].query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Until `ready`."""
        if self._way is not None:
            self._way[2].synchronize()


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _join(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)
