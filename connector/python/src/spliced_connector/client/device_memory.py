"""Memory of a GPU that the daemon lends to this process: the device arena and private chunks.

One `DeviceMemory` belongs to one connection. When that ends nothing is given by it any more; it is
unmapped when the last lease is released and everything queued on the GPU has run, because an
access to unmapped memory would end the engine's context.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.connection.flight import Call, Late
from spliced_connector.client.connection.returns import Return
from spliced_connector.client.device_attach import Gpu, Mapping
from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu import (
    CudaError,
    DeviceArray,
    DeviceThread,
    DeviceThreads,
    Event,
    Kernels,
    Run,
    Stream,
    quiet,
    refuse_capture,
)
from spliced_connector.model import DType
from spliced_connector.wire import CodesReply, Op, OrderRequest
from spliced_connector.wire.numbers import MAX_IDS

log = logging.getLogger("spliced")

_PAUSE = 0.05  # between attempts to tell a daemon that does not take requests, in seconds


class Passing:
    """Leases that the daemon takes back when a stream has passed a point."""

    def __init__(self, tenant: int, leases: Sequence[int], after: int, signal: int) -> None:
        self.tenant = tenant
        self.leases = leases
        self.after = after
        self.signal = signal
        """What the daemon writes into its slot then, 0 for nothing."""
        self.event: Event | None = None
        self._done = threading.Event()
        self._good: tuple[bool, ...] = (False,) * len(leases)

    def wait(self, timeout: float) -> bool:
        """Wait until the stream has passed and the daemon has answered, or is gone."""
        return self._done.wait(timeout)

    @property
    def good(self) -> tuple[bool, ...]:
        """For each lease whether its bytes were good until the stream had passed; False before."""
        return self._good

    def settle(self, good: Sequence[bool]) -> None:
        """Say what became of it."""
        self._good = tuple(good)
        self._done.set()


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
        self._timeout = timeout
        self._ended = threading.Event()
        self._passing: deque[Passing] = deque()
        self._dropped: deque[tuple[int, int]] = deque()

    @property
    def kernels(self) -> Kernels:
        """The daemon's kernels in this process. Raises `SplicedError` saying why there are none."""
        if self._kernels is None:
            raise SplicedError(Code.UNAVAILABLE, self._no_kernels)
        return self._kernels

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

    # Order.

    def release_after(
        self, stream: Stream, tenant: int, leases: Sequence[int], *, signal: bool = False
    ) -> Passing:
        """Have leases released when a stream has passed this point. It does not wait.

        The caller keeps the mappings until then (`Attachment.retain`). Raises `CudaError`,
        `SplicedError(UNSUPPORTED)` for a stream that captures a graph.
        """
        order = self._order
        if order is None:
            passing = Passing(tenant, leases, 0, 0)
            with self.gpu.context.current() as driver:
                refuse_capture(driver, stream, "a release")
                passing.event = driver.event()
                driver.record(passing.event, stream)
        else:
            number = order.next_signal() if signal else 0
            passing = Passing(tenant, leases, order.mark(stream), number)
        self._passing.append(passing)
        self._thread.do(self._pass)
        return passing

    def wait(self, stream: Stream, passing: Passing) -> None:
        """Have a stream wait until the daemon has the leases back, or is gone.

        `release_after` was told that it signals. Where the GPU has no memory operations on
        streams, this waits on the host. Raises `CudaError`, `SplicedError`: INVALID, UNSUPPORTED
        for a stream that captures a graph.
        """
        if self._order is None:
            with self.gpu.context.current() as driver:
                refuse_capture(driver, stream, "a wait for the daemon")
            passing.wait(self._timeout)
        elif passing.signal == 0:
            raise SplicedError(Code.INVALID, "a wait for no signal")
        else:
            self._order.wait(stream, passing.signal)

    def _pass(self) -> None:
        """Tell the daemon of all that has been marked meanwhile."""
        waiting: list[Passing] = []
        with contextlib.suppress(IndexError):
            while True:
                waiting.append(self._passing.popleft())
        while waiting:
            n = _together(waiting)
            self._settle(waiting[:n])
            del waiting[:n]

    def _settle(self, batch: list[Passing]) -> None:
        answers: list[bool] | None = [False] * _leases(batch)
        with contextlib.suppress(SplicedError):
            answers = None if self._order is None else self._ask(batch)
        if answers is None:
            self._waiter.do(partial(self._settle_behind, batch))
        else:
            self._settled(batch, answers)

    def _settle_behind(self, batch: list[Passing]) -> None:
        answers = [False] * _leases(batch)
        with contextlib.suppress(SplicedError):
            answers = self._release_behind(batch)
        self._settled(batch, answers)

    def _settled(self, batch: list[Passing], answers: list[bool]) -> None:
        self.attachment.tally.add("doubtful", answers.count(False))
        at = 0
        for passing in batch:
            n = len(passing.leases)
            passing.settle(answers[at : at + n])
            at += n
            for _ in range(n):
                self.attachment.release()

    def _ask(self, batch: list[Passing]) -> list[bool] | None:
        """Ask until the stream has passed, or the connection has ended. None: it is refused."""
        # Two threads may have marked in one order and come here in the other.
        after = max(passing.after for passing in batch)
        signal = batch[-1].signal
        ids = [lease for passing in batch for lease in passing.leases]
        request = OrderRequest(after, signal, ids)
        while not self.attachment.ended:
            call = Call(Op.ORDER, time.monotonic() + self._timeout, Late(batch[0].tenant))
            try:
                self.attachment.exchange.start(call, request)
                # The daemon says at its deadline that the stream has not passed.
                call.deadline += self._timeout
                codes = self.attachment.exchange.result(call, CodesReply).codes
            except SplicedError as err:
                if err.code in (Code.LATE, Code.BUSY, Code.CANCELED, Code.UNAVAILABLE):
                    # Streams must not wait for ever for a daemon that does not answer. One that
                    # does has only not seen our stream pass yet.
                    if signal and self._order is not None and call.reply is None:
                        self._order.let_go(signal)
                    self._ended.wait(_PAUSE)
                    continue
                if signal and self._order is not None:
                    self._order.let_go(signal)  # nobody else will
                return None
            if len(codes) != len(ids):
                raise self.attachment.garbage(f"order: {len(codes)} rows, want {len(ids)}")
            return [code == Code.OK for code in codes]
        return [self.attachment.intact] * len(ids)

    def _release_behind(self, batch: list[Passing]) -> list[bool]:
        """Wait on the host for the streams, then release."""
        ids = [lease for passing in batch for lease in passing.leases]
        with self.gpu.context.aside() as driver:
            for passing in batch:
                if passing.event is None:
                    driver.synchronize_all()
                    continue
                driver.wait_event(passing.event)
                driver.destroy_event(passing.event)
        debt = Return(Op.RELEASE, batch[0].tenant)
        codes = self.attachment.give_back(debt, ids, self._timeout)
        if codes is None:
            return [self.attachment.ended and self.attachment.intact] * len(ids)
        return [code == Code.OK for code in codes]

    def drop(self, tenant: int, lease: int) -> None:
        """Release a lease that was forgotten, behind all that is queued. Takes no lock."""
        self._dropped.append((tenant, lease))
        self._waiter.do(self._collect)

    def _collect(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                tenant, lease = self._dropped.popleft()
                with contextlib.suppress(CudaError), self.gpu.context.aside() as driver:
                    driver.synchronize_all()
                self.attachment.drop(Return(Op.RELEASE, tenant), lease)

    # The end.

    def ended(self) -> None:
        """Let streams go on that wait for the daemon. It does not wait."""
        self._ended.set()
        if self._order is not None:
            # Here and now: our threads may be behind the very streams that wait.
            with contextlib.suppress(CudaError):
                self._order.let_go()

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


def _leases(batch: Sequence[Passing]) -> int:
    return sum(len(passing.leases) for passing in batch)


def _together(waiting: Sequence[Passing]) -> int:
    """How many of the first go into one request.

    None behind one that signals: its stream may be waiting for that signal in front of what was
    marked later.
    """
    n, ids = 1, len(waiting[0].leases)
    while n < len(waiting) and not waiting[n - 1].signal:
        ids += len(waiting[n].leases)
        if waiting[n].tenant != waiting[0].tenant or ids > MAX_IDS:
            break
        n += 1
    return n
