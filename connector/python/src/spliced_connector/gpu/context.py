"""Devices and contexts: the GPU, and the context that is current on a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu.driver import Driver, Stream
from spliced_connector.gpu.errors import NoDriverError


class Context:
    """A CUDA context of one device: the primary context, or a context that the engine made."""

    def __init__(self, driver: Driver, device: int, handle: int = 0) -> None:
        """Without a handle, the primary context is retained until `close`. Raises `CudaError`."""
        self.driver = driver
        self.device = device
        self._owned = not handle
        self.handle = handle or driver.retain_primary(device)

    @contextmanager
    def current(self) -> Iterator[Driver]:
        """Makes this context current on the calling thread for one block, then restores the
        previous context."""
        driver = self.driver
        if driver.current_context() == self.handle:
            yield driver
            return
        driver.push_context(self.handle)
        try:
            yield driver
        finally:
            driver.pop_context()

    @contextmanager
    def aside(self) -> Iterator[Driver]:
        """Does what `current` does, for threads that this package starts. In the block, calls do
        not disturb threads of the engine that capture graphs."""
        with self.current() as driver, driver.relaxed():
            yield driver

    def close(self) -> None:
        """Releases the primary context. Further calls do nothing."""
        owned, self._owned = self._owned, False
        if owned:
            self.driver.release_primary(self.device)


def find_device(driver: Driver, uuid: bytes) -> int:
    """Returns the device that has a UUID, or the only device if the UUID is empty. Raises
    `NoDriverError`."""
    devices = driver.devices()
    if not uuid:
        if len(devices) == 1:
            return devices[0][0]
        raise NoDriverError(f"{len(devices)} GPUs are visible: select one by its UUID")
    for device, found in devices:
        if found == uuid:
            return device
    seen = ", ".join(uuid_text(found) for _, found in devices) or "none"
    raise NoDriverError(f"GPU {uuid_text(uuid)} is not visible here, only {seen}")


def uuid_text(uuid: bytes) -> str:
    """Formats a UUID as nvidia-smi does."""
    text = uuid.hex()
    cuts = (0, 8, 12, 16, 20, 32)
    return "GPU-" + "-".join(text[a:b] for a, b in pairwise(cuts))


def refuse_capture(driver: Driver, stream: Stream, what: str) -> None:
    """Raises `SplicedError(UNSUPPORTED)` if a stream captures a CUDA graph: a replay of the graph
    would repeat the work wrongly.

    The graph would keep addresses of tables that later launches overwrite, and sequence numbers
    that are sent to the daemon only once. Also raises `CudaError`.
    """
    if driver.captures(stream):
        text = f"{what} on a stream that captures a CUDA graph: do it before or after the capture"
        raise SplicedError(Code.UNSUPPORTED, text)
