"""Streams that capture a CUDA graph, on which nothing of ours can be queued."""

from __future__ import annotations

from spliced_connector.cuda_driver import Driver, Stream
from spliced_connector.errors import Code, SplicedError


def refuse_capture(driver: Driver, stream: Stream, what: str) -> None:
    """Refuse to queue something that a replay of the graph would do wrong.

    A graph keeps addresses of tables that are written anew for later launches, and numbers that
    are told to the daemon once. Raises `SplicedError(UNSUPPORTED)`, `CudaError`.
    """
    if driver.captures(stream):
        text = f"{what} on a stream that captures a CUDA graph: do it before or behind the capture"
        raise SplicedError(Code.UNSUPPORTED, text)
