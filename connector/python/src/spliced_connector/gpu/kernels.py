"""Runs the daemon's kernels in this process, on the engine's own streams.

The daemon provides the PTX with its memory, so that kernels and daemon match. A launch returns
when it is queued; its operands must stay valid until the stream has passed the launch.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu.context import Context, refuse_capture
from spliced_connector.gpu.driver import DevicePtr, Driver, Event, Function, Stream
from spliced_connector.gpu.launch import Launch
from spliced_connector.gpu.launches import MAX_SHARED, TABLE_ALIGN
from spliced_connector.gpu.mapped import Run

_SLOTS = 8  # copies of tables that may be in use at once; a guess
# Bytes for one call's tables, allocated in advance: a guess, which is enough for a rotation of some
# 1,700 rows.
_TABLE_BYTES = 256 << 10
_SCRATCH_BYTES = 1 << 20  # for one call's operands, allocated in advance: a guess
_MOST_BYTES = 256 << 20


_ENTRY = re.compile(rb"\.entry\s+(\w+)")


@dataclass
class _Slot:
    """Memory of one call. It is in use until the stream has passed `event`."""

    event: Event
    device: DevicePtr
    host: memoryview
    address: int  # in host memory
    nbytes: int


class _Ring:
    """Slots that are used in turn. The caller holds the lock and has made the context current.

    All slots are allocated in advance. A slot that is too small gets new memory, at least twice as
    large. Its old memory is freed only by `close`, because freeing device memory waits for all
    streams of the device.
    """

    def __init__(self, driver: Driver, nbytes: int, *, host: bool) -> None:
        self._driver = driver
        self._host = host
        self._next = 0
        self._undo = contextlib.ExitStack()
        with contextlib.ExitStack() as failing:
            failing.callback(self._undo.close)
            device, view, address = self._take(_SLOTS * nbytes)
            self._slots = []
            for at in range(0, _SLOTS * nbytes, nbytes):
                event = driver.event()
                self._undo.callback(driver.destroy_event, event)
                part = view[at : at + nbytes]
                slot = _Slot(event, DevicePtr(device + at), part, address + at, nbytes)
                self._slots.append(slot)
            failing.pop_all()

    def take(self, nbytes: int) -> _Slot:
        """Returns a slot of at least `nbytes`; waits for the stream that used it last."""
        if nbytes > _MOST_BYTES:
            raise SplicedError(Code.FULL, f"{nbytes} bytes beside a launch, at most {_MOST_BYTES}")
        slot = self._slots[self._next]
        self._next = (self._next + 1) % _SLOTS
        self._driver.wait_event(slot.event)
        if slot.nbytes < nbytes:
            room = 1 << (nbytes - 1).bit_length()
            slot.device, slot.host, slot.address = self._take(room)
            slot.nbytes = room
        return slot

    def _take(self, nbytes: int) -> tuple[DevicePtr, memoryview, int]:
        with contextlib.ExitStack() as failing:
            device = self._driver.alloc(nbytes)
            failing.callback(self._driver.free, device)
            view, address = memoryview(b""), 0
            if self._host:
                view = memoryview(mmap.mmap(-1, nbytes))
                failing.callback(view.release)  # it stays mapped for as long as it is registered
                address = ctypes.addressof(ctypes.c_char.from_buffer(view))
                self._driver.lock_pages(address, nbytes)
                failing.callback(self._driver.unlock_pages, address)
            self._undo.push(failing.pop_all())
        return device, view, address

    def close(self) -> None:
        """Frees all memory, once no stream uses it."""
        self._undo.close()


class Kernels:
    """The kernels, loaded into one context. Any thread may launch them."""

    def __init__(self, context: Context, ptx: bytes) -> None:
        """Compiles and loads all kernels, which may take seconds. Raises `CudaError`.

        Kernels are not left to be loaded at their first launch, because the driver may wait for the
        whole device when it loads a kernel. 10 MiB of device memory and 2 MiB of pinned host memory
        are reserved for launches.
        """
        self._context = context
        self._lock = threading.Lock()
        self._functions: dict[str, Function] = {}
        with context.current() as driver, contextlib.ExitStack() as failing:
            module = driver.load_module(ptx)
            failing.callback(driver.unload_module, module)
            for name in _ENTRY.findall(ptx):
                function = driver.function(module, name.decode())
                driver.preload(function)
                driver.allow_shared(function, MAX_SHARED)
                self._functions[name.decode()] = function
            self._tables = _Ring(driver, _TABLE_BYTES, host=True)
            failing.callback(self._tables.close)
            self._scratch = _Ring(driver, _SCRATCH_BYTES, host=False)
            failing.callback(self._scratch.close)
            self._undo = failing.pop_all()

    def launch(self, stream: Stream, launches: Sequence[Launch]) -> None:
        """Queues launches, one after the other. Raises `CudaError`.

        It waits for another stream only while the tables of the last eight calls are all in use.
        """
        self.gather(stream, [], lambda _: launches)

    def gather(
        self,
        stream: Stream,
        pieces: Sequence[Sequence[Run]],
        build: Callable[[list[DevicePtr]], Sequence[Launch]],
    ) -> None:
        """Queues copies that make operands contiguous, then launches that read the operands.

        pieces: the runs of memory of each operand; an operand of one run is not copied. `build`
        receives the address of each operand and returns the launches. Raises `CudaError`, and
        `SplicedError(UNSUPPORTED)` for a stream that captures a graph.
        """
        with self._lock, self._context.current() as driver:
            refuse_capture(driver, stream, "a launch")
            slot, addresses = self._gather(driver, stream, pieces)
            try:
                self._launch(driver, stream, build(addresses))
            finally:
                if slot is not None:
                    driver.record(slot.event, stream)

    def _gather(
        self, driver: Driver, stream: Stream, pieces: Sequence[Sequence[Run]]
    ) -> tuple[_Slot | None, list[DevicePtr]]:
        sizes = [sum(run.nbytes for run in runs) if len(runs) > 1 else 0 for runs in pieces]
        slot = self._scratch.take(sum(map(_aligned, sizes))) if any(sizes) else None
        at = slot.device if slot is not None else DevicePtr(0)
        addresses = []
        for runs, size in zip(pieces, sizes, strict=True):
            if not size:
                addresses.append(runs[0].address)
                continue
            addresses.append(at)
            to = at
            for run in runs:
                driver.copy(to, run.address, run.nbytes, stream)
                to = DevicePtr(to + run.nbytes)
            at = DevicePtr(at + _aligned(size))
        return slot, addresses

    def _launch(self, driver: Driver, stream: Stream, launches: Sequence[Launch]) -> None:
        nbytes = sum(_aligned(len(launch.tables)) for launch in launches)
        if not launches:
            return
        functions = [self._function(launch.name) for launch in launches]
        slot = self._tables.take(nbytes)
        at = 0
        places = []
        for launch in launches:
            slot.host[at : at + len(launch.tables)] = launch.tables
            places.append(slot.device + at)
            at += _aligned(len(launch.tables))
        try:
            if at:
                driver.copy_to_device(slot.device, slot.address, at, stream)
            for function, launch, place in zip(functions, launches, places, strict=True):
                arguments = place.to_bytes(8, "little") + launch.args[8:]
                driver.launch(function, launch.grid, launch.block, launch.shared, stream, arguments)
        finally:
            driver.record(slot.event, stream)

    def _function(self, name: str) -> Function:
        function = self._functions.get(name)
        if function is None:
            raise SplicedError(Code.UNSUPPORTED, f"the daemon has no kernel {name}")
        return function

    def close(self) -> None:
        """Unloads the kernels, once no stream runs them. Raises `CudaError`."""
        with self._lock, self._context.aside():
            self._undo.close()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // TABLE_ALIGN) * TABLE_ALIGN
