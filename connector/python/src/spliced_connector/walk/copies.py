"""Copies between the memory of an engine's device and host memory.

On a GPU they run on a separate stream and through pinned memory, so that the thread that runs the
model waits for none of them. On a CPU nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Moment(Protocol):
    """A point in the work of a stream."""

    def synchronize(self) -> None:
        """Waits until the stream has reached the point. Any thread may call it."""
        ...


class Stream(Protocol):
    """A stream for copies. The engine computes on another stream, the device's current one."""

    def host(self, like: Tensor) -> Tensor:
        """Returns pinned host memory, not set."""
        ...

    def device(self, like: Tensor) -> Tensor:
        """Returns memory of the device, not set."""
        ...

    def follow(self) -> None:
        """Makes later work on this stream wait for the work queued on the engine's stream."""
        ...

    def copy(self, to: Tensor, source: Tensor) -> None: ...

    def moment(self) -> Moment: ...

    def precede(self, made: Sequence[Tensor]) -> None:
        """Makes later work on the engine's stream wait for the work queued on this stream, so that
        the engine may use `made`, tensors that were copied here."""
        ...


class ToHost:
    """Tensors being copied to host memory. They must not change before `arrived` has returned."""

    def __init__(self, tensors: Sequence[Tensor], stream: Stream | None) -> None:
        """stream: None for tensors that need no copy."""
        self.nbytes = sum(x.nbytes for x in tensors)
        self._moment: Moment | None = None
        self._sources = tuple(tensors)  # referenced until they are copied
        self._host = self._sources
        if stream is None:
            return
        self._host = tuple(stream.host(x) for x in tensors)
        stream.follow()
        for to, source in zip(self._host, tensors, strict=True):
            stream.copy(to, source)
        self._moment = stream.moment()

    def arrived(self) -> tuple[Tensor, ...]:
        """Waits for the copies and returns them. Any thread may call it, but only one at a time."""
        if self._moment is not None:
            self._moment.synchronize()
        self._moment, self._sources = None, ()
        return self._host


class Copies:
    """Starts the copies of one engine, in the engine's thread."""

    def __init__(self, device: torch.device, stream: Stream | None = None) -> None:
        """stream: for tests."""
        self.device = device
        own = None if device.type == "cpu" else _Beside(device)
        self._stream: Stream | None = stream or own

    def to_host(self, tensors: Sequence[Tensor]) -> ToHost:
        """Starts copying tensors of the device to host memory. Each must be contiguous."""
        return ToHost(tensors, self._stream)

    def to_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns device copies of tensors in host memory, for use on the engine's stream. The
        host memory is not read after the return. On a CPU it returns the same tensors."""
        stream = self._stream
        if stream is None:
            return list(tensors)
        made = []
        for x in tensors:
            pinned, to = stream.host(x), stream.device(x)
            pinned.copy_(x)
            stream.copy(to, pinned)
            made.append(to)
        stream.precede(made)
        return made


class _Beside:
    """A `Stream` of any accelerator that torch supports. This class was never run on one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device=device)

    def host(self, like: Tensor) -> Tensor:
        # Torch caches pinned memory, and reuses it when its copies are done.
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def device(self, like: Tensor) -> Tensor:
        with self._stream:
            return torch.empty(like.shape, dtype=like.dtype, device=self._device)

    def follow(self) -> None:
        self._stream.wait_stream(torch.accelerator.current_stream(self._device))

    def copy(self, to: Tensor, source: Tensor) -> None:
        with self._stream:
            to.copy_(source, non_blocking=True)

    def moment(self) -> Moment:
        reached: Moment = self._stream.record_event()
        return reached

    def precede(self, made: Sequence[Tensor]) -> None:
        current = torch.accelerator.current_stream(self._device)
        current.wait_stream(self._stream)
        for x in made:
            x.record_stream(current)
