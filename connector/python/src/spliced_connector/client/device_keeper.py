"""Keeps the daemon's memory on the engine's GPU attached, also after a restart of the daemon."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.connection.options import DeviceOptions
from spliced_connector.client.device_attach import attach_device, open_gpu
from spliced_connector.client.device_memory import DeviceMemory
from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu import DeviceThreads

log = logging.getLogger("spliced")


class DeviceKeeper:
    """Attaches GPU memory after each attachment of the client, in separate threads."""

    def __init__(
        self,
        options: DeviceOptions,
        timeout: float,
        changed: threading.Condition,
        wake: Callable[[], bool],
    ) -> None:
        self.why = "not tried yet"
        """Why no GPU memory is attached."""
        self.tried: Attachment | None = None
        """The last attachment whose memory was requested."""
        self._options = options
        self._timeout = timeout
        self._changed = changed
        self._wake = wake
        self._logged = ""
        self._threads = DeviceThreads()

    def attach(self, attachment: Attachment) -> None:
        """Starts attaching the memory of a daemon; `changed` is notified afterwards."""
        if attachment.retain():
            self._threads.order.do(partial(self._attach, attachment))

    def _attach(self, attachment: Attachment) -> None:
        try:
            self._try(attachment)
            self.why = self._logged = ""
        except SplicedError as err:
            self.why = str(err)
            if self.why != self._logged and not attachment.ended:
                self._logged = self.why
                log.warning("no GPU memory from the cache daemon: %s", self.why)
        finally:
            attachment.release()
            with self._changed:
                self.tried = attachment
                self._changed.notify_all()
            self._wake()  # the engine's memory can be registered now

    def _try(self, attachment: Attachment) -> None:
        if not attachment.greeting.device:
            raise SplicedError(Code.UNSUPPORTED, "it shares none")
        gpu = open_gpu(self._options)
        try:
            with gpu.context.aside():
                mapping = attach_device(attachment, gpu, self._options)
                memory = DeviceMemory(attachment, gpu, self._threads, mapping, self._timeout)
                memory.load_kernels()
        except SplicedError:
            gpu.context.close()
            raise
        if not attachment.map_device(memory):
            memory.close()
            raise SplicedError(Code.UNAVAILABLE, "the connection has ended")
        log.info("attached %d bytes of the daemon's GPU", mapping.arena.nbytes)

    def close(self, timeout: float) -> None:
        """Ends the threads, after their pending work."""
        self._threads.close(timeout)
