"""Memory of a GPU as tests look at it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from client_samples import PATIENCE
from fake_cuda import FakeCuda
from spliced_connector.client import Client, DeviceMemory
from spliced_connector.gpu import Context, DevicePtr, Run, Stream


def attached(client: Client) -> DeviceMemory:
    """The daemon's memory."""
    device = client.wait_device(PATIENCE)
    assert device is not None, client.device_state
    return device


@contextmanager
def stream_of(device: DeviceMemory, priority: int = 0) -> Iterator[Stream]:
    """A stream of the engine. Those of one priority share a few queues."""
    with contextlib.ExitStack() as undo:
        context = engine_context(device)
        undo.callback(context.close)
        with context.current() as driver:
            stream = driver.stream_with_priority(priority)
        undo.callback(_destroy, context, stream)
        yield stream
        with context.current() as driver:
            driver.synchronize(stream)  # not one of a test that failed: it may wait for ever


def _destroy(context: Context, stream: Stream) -> None:
    with context.current() as driver:
        driver.destroy_stream(stream)


@contextmanager
def capture_on(cuda: FakeCuda, device: DeviceMemory, stream: Stream) -> Iterator[None]:
    """A capture of the engine, which nothing in the block may break."""
    with device.gpu.context.current():
        cuda.capture(stream)
    try:
        yield
    finally:
        with device.gpu.context.current():
            code = cuda.end_capture(stream)
    assert code == 0, "the capture is broken"


def engine_context(device: DeviceMemory) -> Context:
    """The primary context, kept as an engine keeps it, whatever becomes of the client."""
    return Context(device.gpu.driver, device.gpu.context.device)


class Memory:
    """Memory of the engine, and what a test has put there. Copies wait for the whole device."""

    def __init__(self, context: Context, nbytes: int) -> None:
        self._context = context
        self.nbytes = nbytes
        with context.current() as driver:
            self.address = driver.alloc(nbytes)
        self.fill(0)

    def fill(self, value: int) -> None:
        """Every byte."""
        self.write(bytes([value]) * self.nbytes)

    def write(self, data: bytes, offset: int = 0) -> None:
        """From the host."""
        source = ctypes.create_string_buffer(data, len(data))
        with self._context.current() as driver:
            stream = driver.stream()
            to = DevicePtr(self.address + offset)
            driver.copy_to_device(to, ctypes.addressof(source), len(data), stream)
            driver.synchronize(stream)
            driver.destroy_stream(stream)

    def read(self) -> bytes:
        """All of it, when all that is queued has run."""
        with self._context.current() as driver:
            driver.synchronize_all()
        return read(self._context, [Run(self.address, self.nbytes)])

    def close(self) -> None:
        """Give it back."""
        with self._context.current() as driver:
            driver.free(self.address)
        self._context.close()


@contextmanager
def memory_of(device: DeviceMemory, nbytes: int) -> Iterator[Memory]:
    """Memory of the engine on that device."""
    with contextlib.closing(Memory(engine_context(device), nbytes)) as memory:
        yield memory


def read(context: Context, runs: Sequence[Run]) -> bytes:
    """Bytes on the device, as they are now."""
    back = [ctypes.create_string_buffer(run.nbytes) for run in runs]
    with context.current() as driver:
        stream = driver.stream()
        for run, to in zip(runs, back, strict=True):
            driver.copy_to_host(ctypes.addressof(to), run.address, run.nbytes, stream)
        driver.synchronize(stream)
        driver.destroy_stream(stream)
    return b"".join(to.raw for to in back)


@dataclass(frozen=True)
class Storage:
    """As torch.UntypedStorage."""

    address: int
    size: int

    def data_ptr(self) -> int:
        return self.address

    def nbytes(self) -> int:
        return self.size


@dataclass(frozen=True)
class Tensor:
    """As torch.Tensor."""

    storage: Storage
    offset: int = 0

    def data_ptr(self) -> int:
        return self.storage.address + self.offset

    def untyped_storage(self) -> Storage:
        return self.storage
