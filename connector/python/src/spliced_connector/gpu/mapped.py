"""Device memory of another process, mapped into this one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu.context import Context
from spliced_connector.gpu.driver import HANDLE_BYTES, DevicePtr


class Run(NamedTuple):
    """Memory at consecutive addresses of a device."""

    address: DevicePtr
    nbytes: int


class Mapped:
    """Chunks of device memory, mapped at consecutive addresses if the way of sharing allows it.

    Offsets count through all chunks in order. No stream may use the memory during `close`.
    """

    def __init__(self, runs: Sequence[Run], undo: Callable[[], None]) -> None:
        self._runs = joined(runs)
        self._undo = undo
        self.nbytes = sum(run.nbytes for run in self._runs)

    def runs(self, offset: int, nbytes: int) -> list[Run]:
        """Returns the memory at [offset, offset + nbytes). Raises `SplicedError(INVALID)` if not
        all of these bytes are mapped."""
        if offset < 0 or nbytes < 0 or offset > self.nbytes - nbytes:
            text = f"{nbytes} bytes at {offset} of {self.nbytes} of device memory"
            raise SplicedError(Code.INVALID, text)
        out = []
        for run in self._runs:
            if nbytes == 0:
                break
            if offset >= run.nbytes:
                offset -= run.nbytes
                continue
            n = min(run.nbytes - offset, nbytes)
            out.append(Run(DevicePtr(run.address + offset), n))
            offset, nbytes = 0, nbytes - n
        return out

    def address(self, offset: int, nbytes: int) -> DevicePtr:
        """Returns the address of [offset, offset + nbytes). Raises `SplicedError(INVALID)` if the
        bytes are not at consecutive addresses."""
        runs = self.runs(offset, nbytes)
        if len(runs) != 1:
            raise SplicedError(Code.INVALID, f"{nbytes} bytes at {offset} lie in {len(runs)} runs")
        return runs[0].address

    def close(self) -> None:
        """Unmaps the memory. Raises `CudaError`."""
        self._undo()


def joined(runs: Sequence[Run]) -> list[Run]:
    """Merges adjacent runs."""
    out: list[Run] = []
    for run in runs:
        if out and out[-1].address + out[-1].nbytes == run.address:
            out[-1] = Run(out[-1].address, out[-1].nbytes + run.nbytes)
        elif run.nbytes:
            out.append(run)
    return out


def map_descriptors(context: Context, sizes: Sequence[int], descriptors: Sequence[int]) -> Mapped:
    """Maps chunks by descriptors, which stay the caller's. Raises `CudaError`."""
    total = sum(sizes)
    if total == 0:
        return Mapped((), lambda: None)
    with context.current() as driver, contextlib.ExitStack() as failing:
        base = driver.reserve(total)
        failing.callback(driver.unreserve, base, total)
        at = base
        for nbytes, descriptor in zip(sizes, descriptors, strict=True):
            allocation = driver.import_descriptor(descriptor)
            try:
                driver.map(at, nbytes, allocation, context.device)
            finally:
                driver.release(allocation)  # the mapping keeps the memory
            failing.callback(driver.unmap, at, nbytes)
            at = DevicePtr(at + nbytes)
        keep = failing.pop_all()
    return Mapped((Run(base, total),), _within(context, keep))


def map_handles(
    context: Context, sizes: Sequence[int], handles: bytes, offsets: Sequence[int]
) -> Mapped:
    """Maps chunks by the handles of their allocations.

    Raises `CudaError`, and `SplicedError(INVALID)` for a chunk beyond its allocation.
    """
    runs = []
    with context.current() as driver, contextlib.ExitStack() as failing:
        for i, (nbytes, offset) in enumerate(zip(sizes, offsets, strict=True)):
            handle = handles[i * HANDLE_BYTES : (i + 1) * HANDLE_BYTES]
            base = _open(context, handle)
            failing.callback(_close, context, handle)
            size = driver.address_range(base)[1]
            if offset > size or nbytes > size - offset:
                text = f"chunk of {nbytes} bytes at {offset} of an allocation of {size}"
                raise SplicedError(Code.INVALID, text)
            runs.append(Run(DevicePtr(base + offset), nbytes))
        keep = failing.pop_all()
    return Mapped(runs, _within(context, keep))


def _within(context: Context, stack: contextlib.ExitStack) -> Callable[[], None]:
    def undo() -> None:
        with context.current():
            stack.close()

    return undo


_openings = threading.Lock()


def _open(context: Context, handle: bytes) -> DevicePtr:
    """Maps an allocation for one more user; a process maps each allocation only once."""
    key = context.handle, handle
    imports = context.driver.imports
    with _openings:
        base, users = imports.get(key, (DevicePtr(0), 0))
        if users == 0:
            base = context.driver.ipc_open(handle)
        imports[key] = base, users + 1
        return base


def _close(context: Context, handle: bytes) -> None:
    key = context.handle, handle
    imports = context.driver.imports
    with _openings:
        base, users = imports[key]
        if users > 1:
            imports[key] = base, users - 1
            return
        del imports[key]
        context.driver.ipc_close(base)


def quiet(close: Callable[[], None]) -> str:
    """Runs a clean-up that may fail. Returns its error, empty for success."""
    try:
        close()
    except SplicedError as err:
        return str(err)
    return ""
