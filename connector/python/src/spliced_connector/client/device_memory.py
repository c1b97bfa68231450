"""Memory of a GPU that the daemon lends to this process: the device arena and private chunks.

One `DeviceMemory` belongs to one connection. When that ends nothing is given by it any more; it is
unmapped when the last lease is released and everything queued on the GPU has run, because an
access to unmapped memory would end the engine's context.
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
    """A user of the mappings. It may be destroyed inside of any function."""

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
    """What one connection has of the daemon's GPU. Any thread may use it."""

    def __init__(
        self,
        attachment: Attachment,
        gpu: Gpu,
        threads: DeviceThreads,
        mapping: Mapping,
        timeout: float,
    ) -> None:
        """`timeout` is of one attempt to tell the daemon that leases have ended."""
        self.gpu = gpu
        self.attachment = attachment
        self.arena = mapping.arena
        """Mapped for reading; that nobody writes to it is left to the client."""
        self.private = mapping.private
        """Slots, staging and the order page, which only this connection has."""
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
        """The daemon's kernels in this process. Raises `SplicedError` saying why there are none."""
        if self._kernels is None:
            raise SplicedError(Code.UNAVAILABLE, self._no_kernels)
        return self._kernels

    @property
    def has_kernels(self) -> bool:
        """Whether `kernels` has them."""
        return self._kernels is not None

    def load_kernels(self) -> None:
        """Compile them, before any engine waits for it. Memory is of use without them.

        It takes seconds where the driver has not kept what it compiled before: see docs/gpu.md.
        """
        try:
            self._kernels = Kernels(self.gpu.context, self.ptx)
        except SplicedError as err:
            self._no_kernels = err.text
            log.warning("no kernels of the cache daemon on this GPU: %s", err.text)

    def array(self, runs: Sequence[Run], shape: tuple[int, ...], dtype: DType) -> DeviceArray:
        """Bytes that lie in one run, such as a part of a `DeviceSegment`, for `torch.from_dlpack`.

        It keeps the mapping, not the lease: its bytes count while that is held. Nothing keeps a
        consumer from writing to it, which would corrupt what others read. Raises
        `SplicedError(INVALID)`.
        """
        if len(runs) != 1:
            raise SplicedError(Code.INVALID, f"{len(runs)} runs, want one: gather them first")
        address, nbytes = runs[0]
        array = DeviceArray(address, shape, dtype, self.gpu.context.device, self.keep())
        if array.nbytes != nbytes:
            raise SplicedError(Code.INVALID, f"an array of {array.nbytes} bytes over {nbytes}")
        return array

    def keep(self) -> object:
        """Something that keeps the mappings for as long as it lives.

        Raises `SplicedError(UNAVAILABLE)` when they are gone.
        """
        return _Keep(self.attachment, self._thread)

    def wait(self, stream: Stream, passing: Passing) -> None:
        """Have a stream wait until the daemon has the leases back, or is gone.

        `release_after` was told that it signals. Where the GPU has no memory operations on
        streams, or `gpu.most_waiting()` streams wait already, this waits on the host. Raises
        `CudaError`, `SplicedError`: INVALID, UNSUPPORTED for a stream that captures a graph.
        """
        self.releases.wait(stream, passing)

    # The end.

    def ended(self) -> None:
        """Let streams go on that wait for the daemon. It does not wait."""
        self.releases.ended()

    def retire(self, then: Callable[[], None]) -> None:
        """Unmap once everything queued has run, and call `then`."""
        self._waiter.do(partial(self._retire, then))

    def _retire(self, then: Callable[[], None]) -> None:
        try:
            with self.gpu.context.aside() as driver:
                driver.synchronize_all()
            self.close()
        finally:
            then()

    def close(self) -> None:
        """Unmap it. Raises `CudaError`."""
        said = list(filter(None, map(quiet, (self._unmap, self.gpu.context.close))))
        if said:
            raise SplicedError(Code.UNAVAILABLE, "; ".join(said))

    def _unmap(self) -> None:
        closing = [self.private.close, self.arena.close]
        if self._order is not None:
            closing.insert(0, self._order.close)
        if self._kernels is not None:
            closing.insert(0, self._kernels.close)
        with self.gpu.context.aside():
            said = list(filter(None, map(quiet, closing)))
        if said:
            raise SplicedError(Code.UNAVAILABLE, "; ".join(said))


def device_of(attachment: Attachment) -> DeviceMemory | None:
    """Memory of the GPU that a connection has, None without."""
    return attachment.device if isinstance(attachment.device, DeviceMemory) else None
