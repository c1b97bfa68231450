"""GPU memory that the daemon lends to this process: the device arena and private chunks.

One `DeviceMemory` belongs to one connection. When the connection ends, there are no new leases. The
memory is unmapped once the last lease is released and all queued GPU work has run, because an
access to unmapped memory would end the engine's CUDA context.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial

from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.device_attach import Gpu, Mapping
from spliced_connector.client.device_releases import DeviceReleases, Passing
from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu import (
    DeviceArray,
    DeviceThread,
    DeviceThreads,
    Kernels,
    Run,
    Stream,
    quiet,
)
from spliced_connector.model import DType

log = logging.getLogger("spliced")


class _Keep:
    """Keeps the mappings for as long as it lives. Its destructor may run inside any function."""

    def __init__(self, attachment: Attachment, thread: DeviceThread) -> None:
        self._thread: DeviceThread | None = None
        self._pid = os.getpid()
        if not attachment.retain():
            raise SplicedError(Code.UNAVAILABLE, "the connection has ended")
        self._attachment, self._thread = attachment, thread

    def __del__(self) -> None:
        if self._thread is not None and self._pid == os.getpid():
            self._thread.do(self._attachment.release)


class DeviceMemory:
    """The memory of the daemon's GPU that one connection maps. Any thread may use it."""

    def __init__(
        self,
        attachment: Attachment,
        gpu: Gpu,
        threads: DeviceThreads,
        mapping: Mapping,
        timeout: float,
    ) -> None:
        """`timeout`: seconds for one attempt to return leases to the daemon."""
        self.gpu = gpu
        self.attachment = attachment
        self.arena = mapping.arena
        """Mapped for reading; the client must not write to it."""
        self.private = mapping.private
        """Slots, staging and the order page, private to this connection."""
        self.epoch = mapping.epoch
        self.staging = mapping.staging
        """The offset and size of the part of `private` that inputs are written to."""
        self.ptx = mapping.ptx
        """The kernels that belong to this daemon."""
        self._order = mapping.order
        self._kernels: Kernels | None = None
        self._no_kernels = "not loaded yet"
        self._thread = threads.order
        self._waiter = threads.waits
        self.releases = DeviceReleases(attachment, gpu.context, threads, mapping.order, timeout)

    @property
    def kernels(self) -> Kernels:
        """Returns the daemon's kernels in this process. Raises `SplicedError` with the reason if
        there are none."""
        if self._kernels is None:
            raise SplicedError(Code.UNAVAILABLE, self._no_kernels)
        return self._kernels

    @property
    def has_kernels(self) -> bool:
        """Returns whether the kernels are loaded."""
        return self._kernels is not None

    def load_kernels(self) -> None:
        """Compiles the kernels ahead of use. The memory can be used without them.

        Compilation takes seconds unless the driver has cached the result: see docs/gpu.md.
        """
        try:
            self._kernels = Kernels(self.gpu.context, self.ptx)
        except SplicedError as err:
            self._no_kernels = err.text
            log.warning("the cache daemon's kernels cannot be used on this GPU: %s", err.text)

    def array(self, runs: Sequence[Run], shape: tuple[int, ...], dtype: DType) -> DeviceArray:
        """Returns an array for `torch.from_dlpack` over bytes that lie in one run, such as a part
        of a `DeviceSegment`.

        The array keeps the mapping, not the lease: its bytes are valid only while the lease lasts.
        The consumer must not write to the array, which would corrupt data that others read; nothing
        prevents it. Raises `SplicedError(INVALID)` for several runs or another size.
        """
        if len(runs) != 1:
            raise SplicedError(Code.INVALID, f"{len(runs)} runs, want one: gather them first")
        address, nbytes = runs[0]
        array = DeviceArray(address, shape, dtype, self.gpu.context.device, self.keep())
        if array.nbytes != nbytes:
            raise SplicedError(Code.INVALID, f"an array of {array.nbytes} bytes over {nbytes}")
        return array

    def keep(self) -> object:
        """Returns an object that keeps the mappings for as long as it lives.

        Raises `SplicedError(UNAVAILABLE)` if they are gone.
        """
        return _Keep(self.attachment, self._thread)

    def wait(self, stream: Stream, passing: Passing) -> None:
        """Makes a stream wait until the daemon has taken the leases of `passing` back, or is gone.

        `release_after` must have been called with a signal. If the GPU has no memory operations
        on streams, or `gpu.most_waiting()` streams wait already, this waits on the host. Raises
        `CudaError`, and `SplicedError`: INVALID for a release without a signal, UNSUPPORTED for a
        stream that captures a graph.
        """
        self.releases.wait(stream, passing)

    # The end.

    def ended(self) -> None:
        """Ends the waits of streams for the daemon. The call itself does not wait."""
        self.releases.ended()

    def retire(self, then: Callable[[], None]) -> None:
        """Unmaps the memory once all queued work has run, then calls `then`."""
        self._waiter.do(partial(self._retire, then))

    def _retire(self, then: Callable[[], None]) -> None:
        try:
            with self.gpu.context.aside() as driver:
                driver.synchronize_all()
            self.close()
        finally:
            then()

    def close(self) -> None:
        """Unmaps the memory. Raises `SplicedError` with all problems."""
        problems = list(filter(None, map(quiet, (self._unmap, self.gpu.context.close))))
        if problems:
            raise SplicedError(Code.UNAVAILABLE, "; ".join(problems))

    def _unmap(self) -> None:
        closing = [self.private.close, self.arena.close]
        if self._order is not None:
            closing.insert(0, self._order.close)
        if self._kernels is not None:
            closing.insert(0, self._kernels.close)
        with self.gpu.context.aside():
            problems = list(filter(None, map(quiet, closing)))
        if problems:
            raise SplicedError(Code.UNAVAILABLE, "; ".join(problems))


def device_of(attachment: Attachment) -> DeviceMemory | None:
    """Returns the GPU memory of a connection, None if it has none."""
    return attachment.device if isinstance(attachment.device, DeviceMemory) else None
