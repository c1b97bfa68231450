"""Running the daemon's kernels in this process, on the engine's own streams.

The PTX came with the memory, so that kernels and daemon belong together. Launches return when they
are queued; what they read has to stay until the stream has passed them.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spliced_connector.cuda_driver import Context, DevicePtr, Driver, Event, Function, Stream
from spliced_connector.cuda_memory import Run, quiet
from spliced_connector.errors import Code, SplicedError
from spliced_connector.kernel_launch import TABLE_ALIGN, Launch

_SLOTS = 8  # copies of tables that may be in use at once; a guess
_FIRST_BYTES = 64 << 10
_MOST_BYTES = 256 << 20
_SHARED_UNASKED = 48 << 10  # of dynamic shared memory, which every launch may have

_NOWHERE = DevicePtr(0)


@dataclass
class _Slot:
    """Memory for one call, until the stream has passed it."""

    event: Event
    device: DevicePtr = _NOWHERE
    nbytes: int = 0
    host: mmap.mmap | None = None
    address: int = 0  # of the host's memory


class _Ring:
    """Slots that are used in turn. The caller holds the lock and has made the context current."""

    def __init__(self, driver: Driver, *, host: bool) -> None:
        self._driver = driver
        self._host = host
        self._slots = [_Slot(driver.event()) for _ in range(_SLOTS)]
        self._next = 0

    def take(self, nbytes: int) -> _Slot:
        """A slot of so many bytes at least; waits for the stream that used it last."""
        if nbytes > _MOST_BYTES:
            raise SplicedError(Code.FULL, f"{nbytes} bytes beside a launch, most {_MOST_BYTES}")
        slot = self._slots[self._next]
        self._next = (self._next + 1) % _SLOTS
        self._driver.wait_event(slot.event)
        if slot.nbytes < nbytes:
            self._grow(slot, max(_FIRST_BYTES, 1 << (nbytes - 1).bit_length()))
        return slot

    def _grow(self, slot: _Slot, nbytes: int) -> None:
        self._free(slot)
        slot.device = self._driver.alloc(nbytes)
        if self._host:
            slot.host = mmap.mmap(-1, nbytes)
            slot.address = ctypes.addressof(ctypes.c_char.from_buffer(slot.host))
            self._driver.lock_pages(slot.address, nbytes)
        slot.nbytes = nbytes

    def _free(self, slot: _Slot) -> None:
        device, slot.device = slot.device, _NOWHERE
        address, slot.address = slot.address, 0
        slot.nbytes = 0
        if device:
            self._driver.free(device)
        if address:
            self._driver.unlock_pages(address)
        slot.host = None

    def close(self) -> None:
        """Give everything back, once no stream uses it."""
        for slot in self._slots:
            self._free(slot)
            self._driver.destroy_event(slot.event)


class Kernels:
    """The kernels, loaded into one context. Any thread may launch them."""

    def __init__(self, context: Context, ptx: bytes) -> None:
        """Compiles them, which may take a second. Raises `CudaError`."""
        self._context = context
        self._lock = threading.Lock()
        self._functions: dict[str, Function] = {}
        self._shared: dict[str, int] = {}
        with context.current() as driver:
            self._module = driver.load_module(ptx)
            self._tables = _Ring(driver, host=True)
            self._scratch = _Ring(driver, host=False)

    def launch(self, stream: Stream, launches: Sequence[Launch]) -> None:
        """Queue launches, one behind the other. Raises `CudaError`.

        It waits for another stream only while the last eight calls' tables are all in use.
        """
        self.gather(stream, [], lambda _: launches)

    def gather(
        self,
        stream: Stream,
        pieces: Sequence[Sequence[Run]],
        build: Callable[[list[DevicePtr]], Sequence[Launch]],
    ) -> None:
        """Queue copies that make operands of several runs contiguous, and launches that read them.

        `build` is given the address of each operand; one of a single run is not copied.
        """
        with self._lock, self._context.current() as driver:
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
        at = slot.device if slot is not None else _NOWHERE
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
        slot = self._tables.take(max(nbytes, 1))
        if slot.host is None:
            raise SplicedError(Code.UNAVAILABLE, "the kernels are unloaded")
        at = 0
        places = []
        for launch in launches:
            slot.host[at : at + len(launch.tables)] = launch.tables
            places.append(slot.device + at)
            at += _aligned(len(launch.tables))
        try:
            if at:
                driver.copy_to_device(slot.device, slot.address, at, stream)
            for launch, place in zip(launches, places, strict=True):
                arguments = place.to_bytes(8, "little") + launch.arguments
                function = self._function(driver, launch)
                driver.launch(function, launch.grid, launch.block, launch.shared, stream, arguments)
        finally:
            driver.record(slot.event, stream)

    def _function(self, driver: Driver, launch: Launch) -> Function:
        function = self._functions.get(launch.name)
        if function is None:
            function = driver.function(self._module, launch.name)
            self._functions[launch.name] = function
        if launch.shared > max(_SHARED_UNASKED, self._shared.get(launch.name, 0)):
            driver.allow_shared(function, launch.shared)
            self._shared[launch.name] = launch.shared
        return function

    def close(self) -> None:
        """Unload them, once no stream runs them. Raises `CudaError`."""
        with self._lock, self._context.current() as driver:
            said = list(filter(None, map(quiet, (self._tables.close, self._scratch.close))))
            driver.unload_module(self._module)
            if said:
                raise SplicedError(Code.UNAVAILABLE, "; ".join(said))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // TABLE_ALIGN) * TABLE_ALIGN
