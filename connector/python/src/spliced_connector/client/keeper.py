"""The thread that keeps a client attached and does the work for which no caller waits."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import select
import threading
import time
import weakref

from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.connection.channel import TICK, milliseconds
from spliced_connector.client.connection.counters import Tally
from spliced_connector.client.connection.hello import attach
from spliced_connector.client.connection.options import Options
from spliced_connector.client.device_keeper import DeviceKeeper
from spliced_connector.client.registration import Enrolment
from spliced_connector.errors import SplicedError

log = logging.getLogger("spliced")

# Seconds between attempts to attach. They double from the first to the highest value, so that a
# restarted daemon is found within a second.
_BACKOFF_FIRST = 0.01
_BACKOFF_MOST = 0.5

WRONG_SECONDS = 60.0
"""Minimum seconds between two logged errors about invalid requests (a guess)."""

_IDLE = 60.0  # every event that matters wakes the thread

_MODELS_MOST = 64

_HANGUP = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


class _Wakeup:
    """Wakes the keeper's thread.

    The descriptor is closed when the last reference to this object is gone. A thread that is about
    to call `set` has a reference, so the descriptor cannot belong to another file by then.
    """

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        with contextlib.suppress(OSError):  # the counter is full, so the thread will wake anyway
            os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_read(self.descriptor)

    def __del__(self) -> None:
        os.close(self.descriptor)


class Keeper:
    """Attaches, attaches again after a restart, registers models, reads late replies."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tally = Tally()
        self.pid = os.getpid()
        self.current: Attachment | None = None
        self.why = "not tried yet"
        """Why no daemon is attached."""
        self.changed = threading.Condition()
        """Notified when `current`, a registration or `closing` changes."""
        self.closing = False
        self._attempts = 0
        self._enrolments: list[Enrolment] = []
        self._attachments: list[Attachment] = []  # used by the thread only
        self._logged = ""  # the last logged reason
        self._now = time.monotonic
        self._full_until = 0.0
        self._quiet_until, self._unlogged = 0.0, 0  # for invalid requests
        self._complaints: dict[Enrolment, str] = {}  # of unregistered models, as last logged
        self._wakeup: _Wakeup | None = _Wakeup()
        self.device: DeviceKeeper | None = None
        if options.device is not None:
            self.device = DeviceKeeper(
                options.device, options.transfer_timeout, self.changed, self.wake
            )
        self._thread = threading.Thread(target=self._run, name="spliced", daemon=True)
        _keepers.add(self)
        self._thread.start()

    # Called by callers.

    @property
    def inert(self) -> bool:
        """Returns whether this is a forked child, which has no connection."""
        return self.pid != os.getpid()

    def wake(self) -> bool:
        """Wakes the thread. Returns False if it has ended. Takes no lock."""
        wakeup = self._wakeup
        if wakeup is None:
            return False
        wakeup.set()
        return True

    def wait_tried(self, timeout: float) -> None:
        """Waits for the first attempt to attach."""
        with self.changed:
            self.changed.wait_for(lambda: self._attempts > 0 or self.closing, timeout)

    def enrol(self, enrolment: Enrolment) -> None:
        """Registers a model at every attachment from now on; waits for the first answer.

        Raises ValueError for too many models.
        """
        with self.changed:
            if len(self._enrolments) >= _MODELS_MOST:
                raise ValueError(f"{_MODELS_MOST} models are registered, the maximum")
            self._enrolments.append(enrolment)
            self.wake()
            if self.current is not None and not self.inert:
                # Longer than the registration itself may take.
                self.changed.wait_for(
                    lambda: self._answered(enrolment), 2 * self.options.attach_timeout
                )

    def _answered(self, enrolment: Enrolment) -> bool:
        if self.current is None or self.closing:
            return True
        return bool(enrolment.trouble) or not enrolment.due(self.current)

    def close(self) -> None:
        """Ends the thread and every connection; waits for at most about the transfer timeout."""
        if self.inert:
            return
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self.wake()
        self._thread.join(self.options.transfer_timeout + self.options.attach_timeout)

    def abandon(self) -> None:
        """Like `close`, for a destructor: it does not wait and takes no lock."""
        self.closing = True
        if not self.inert:
            self.wake()

    def forked(self) -> None:
        """Drops the parent's connection in a child that has just been forked.

        Otherwise the daemon would not notice the parent's end. Locks are made anew, because threads
        that do not exist in the child may have held the old ones.
        """
        self.tally.forked()
        self.changed = threading.Condition()
        for attachment in self._attachments:
            attachment.forget()
        self._wakeup = None
        for enrolment in self._enrolments:
            enrolment.close()

    def log_wrong(self, text: str) -> None:
        """Logs an invalid request, at most one per `WRONG_SECONDS`. Repeated mistakes cannot be
        recognized by their text, which contains numbers of the prompt."""
        now = self._now()
        if now < self._quiet_until:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more were not logged)" if self._unlogged else ""
        self._quiet_until, self._unlogged = now + WRONG_SECONDS, 0
        log.error("invalid request to the cache daemon: %s%s", text, more)

    def full_due(self) -> bool:
        """Returns whether to log that objects were not stored: once per `WRONG_SECONDS`."""
        now = self._now()
        due = now >= self._full_until
        if due:
            self._full_until = now + WRONG_SECONDS
        return due

    # Run by the thread.

    def _run(self) -> None:
        try:
            self._keep()
        finally:
            self._shut_down()

    def _keep(self) -> None:
        backoff = _BACKOFF_FIRST
        attempt = 0.0
        while not self.closing:
            now = time.monotonic()
            if self.current is not None and self.current.ended:
                self._lost(self.current)
                attempt = now + _jitter(backoff)
            if self.current is None and now >= attempt:
                if self._attach():
                    backoff = _BACKOFF_FIRST
                else:
                    attempt = time.monotonic() + _jitter(backoff)
                    backoff = min(2 * backoff, _BACKOFF_MOST)
            if self.current is None:
                self._serve(attempt - time.monotonic())
            else:
                self._serve(self._register(self.current) - time.monotonic())

    def _attach(self) -> bool:
        try:
            attachment = attach(self.options, self.tally, self.wake, lambda: self.closing)
        except SplicedError as err:
            self._failed(str(err))
            return False
        self.tally.add("attached")
        self._attachments.append(attachment)
        for enrolment in self._enrolments:
            enrolment.not_before = 0.0
        self._logged = ""
        self._complaints.clear()
        log.info("attached to the cache daemon %s", attachment.greeting.server)
        with self.changed:
            self.current, self.why = attachment, ""
            self._attempts += 1
            self.changed.notify_all()
        if self.device is not None:
            self.device.attach(attachment)
        return True

    def _failed(self, why: str) -> None:
        """Logs why there is no daemon, once per reason."""
        if why != self._logged and not self.closing:
            self._logged = why
            log.warning("no cache daemon, continuing without: %s", why)
        with self.changed:
            self.why = why
            self._attempts += 1
            self.changed.notify_all()

    def _lost(self, attachment: Attachment) -> None:
        self.tally.add("lost")
        log.warning("lost the cache daemon: %s", attachment.cause)
        with self.changed:
            self.current, self.why = None, attachment.cause
            self.changed.notify_all()

    def _register(self, attachment: Attachment) -> float:
        """Registers models that are due. Returns the time of the next attempt, as of
        `time.monotonic`; an event may wake the thread earlier."""
        with self.changed:
            due = [e for e in self._enrolments if e.due(attachment)]
        now = time.monotonic()
        for enrolment in due:
            if enrolment.not_before > now or attachment.ended or self.closing:
                continue
            why = enrolment.register(attachment, self.options)
            if why is not None:
                enrolment.not_before = time.monotonic() + _BACKOFF_MOST
                if not attachment.ended:
                    self._refused(enrolment, why)
            else:
                self._complaints.pop(enrolment, None)
            with self.changed:
                self.changed.notify_all()
        again = [e.not_before for e in due if e.due(attachment)]
        return min(again, default=time.monotonic() + _IDLE)

    def _refused(self, enrolment: Enrolment, why: str) -> None:
        complaint = f"{enrolment.profile.identity.model}: {why}"
        if self._complaints.get(enrolment) == complaint:
            return
        self._complaints[enrolment] = complaint
        if enrolment.registration is not None and enrolment.registration.attachment is self.current:
            log.warning("the cache daemon does not store for %s", complaint)
        else:
            log.warning("the cache daemon refuses the profile, no hits for %s", complaint)

    def _serve(self, wait: float) -> None:
        """Serves the connections for at most `wait` seconds."""
        ready = select.poll()
        wakeup = self._wakeup
        if wakeup is not None:
            ready.register(wakeup.descriptor, select.POLLIN)
        by_descriptor = {}
        for attachment in list(self._attachments):
            if not attachment.collect() and attachment.gone:
                self._attachments.remove(attachment)
                continue
            if attachment.gone:
                continue
            if not attachment.ended and not attachment.returns.send():
                wait = min(wait, TICK)
            events = select.POLLRDHUP | (select.POLLIN if attachment.exchange.flight.orphans else 0)
            descriptor = attachment.channel.fileno()
            ready.register(descriptor, events)
            by_descriptor[descriptor] = attachment
        again = False
        for descriptor, events in ready.poll(milliseconds(wait)):
            if wakeup is not None and descriptor == wakeup.descriptor:
                wakeup.clear()
                continue
            attachment = by_descriptor[descriptor]
            if events & _HANGUP:
                again |= not attachment.finish()
            else:
                again |= not attachment.exchange.read_late()
        for attachment in by_descriptor.values():
            if attachment.exchange.at_end and not attachment.gone:
                again |= not attachment.finish()
        if again:
            time.sleep(0.001)  # a caller is reading and will handle the same events

    def _shut_down(self) -> None:
        """Ends all connections. First waits some time for requests that may write engine memory."""
        until = time.monotonic() + self.options.transfer_timeout
        for attachment in self._attachments:
            if not attachment.gone:
                attachment.hang_up("client closed")
        while self._daemon_may_access() and (left := until - time.monotonic()) > 0:
            self._serve(left)
        for attachment in self._attachments:
            attachment.collect()
            if not attachment.gone:
                attachment.settle(known=False)
        for enrolment in self._enrolments:
            enrolment.close()
        if self.device is not None:
            self.device.close(self.options.transfer_timeout)
        with self.changed:
            self.closing, self.current, self.why = True, None, "client closed"
            self.changed.notify_all()
        self._wakeup = None
        for attachment in self._attachments:  # leases dropped after the last wake
            attachment.collect()

    def _daemon_may_access(self) -> bool:
        """Returns whether a daemon may still access engine memory: it has not closed its side."""
        there = [a for a in self._attachments if not a.gone]
        if any(a.exchange.flight.writing() for a in there):
            return True
        return bool(there) and any(enrolment.exporting for enrolment in self._enrolments)


def _jitter(seconds: float) -> float:
    """Returns a random delay of at most `seconds`, so that the clients of a node do not attach all
    at once."""
    return random.uniform(seconds / 2, seconds)


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


def _forget_all() -> None:
    for keeper in list(_keepers):
        keeper.forked()


os.register_at_fork(after_in_child=_forget_all)
