"""Leases of the daemon's memory: segments, checkpoints and slots."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.connection.checksum import CHUNK_BYTES, chunks, xxh3
from spliced_connector.client.connection.returns import Return
from spliced_connector.client.connection.staging import Extent
from spliced_connector.client.extents import cut, present
from spliced_connector.client.terms import Accept
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import Layout
from spliced_connector.wire import Op
from spliced_connector.wire.numbers import MAX_IDS


class Held:
    """A lease: an id that the daemon knows, and mappings that stay until release.

    A lease that is dropped without release is returned when it is garbage-collected.
    """

    def __init__(self, attachment: Attachment, tenant: int, lease: int, timeout: float) -> None:
        """Raises `SplicedError(UNAVAILABLE)` when the mappings are gone."""
        self._released = True
        self._good = False
        self._pid = os.getpid()
        if not attachment.retain():
            raise SplicedError(Code.UNAVAILABLE, "the connection has ended")
        self._released = False
        self._attachment = attachment
        self._tenant = tenant
        self._lease = lease
        self._timeout = timeout

    @property
    def valid(self) -> bool:
        """Returns whether the bytes are unchanged, as far as the client knows."""
        return not self._released and self._pid == os.getpid() and self._attachment.intact

    def release(self) -> bool:
        """Releases the lease. Returns True if its bytes were valid for the whole lease.

        Returns False if the connection to a living daemon has ended, if the daemon does not answer
        in time, and in a forked child. Data that was read must not be used then. Views stay
        readable but may hold other bytes.
        """
        return release_all([self])[0]

    def lease_on(self, attachment: Attachment) -> int:
        """Returns the id for a request. Raises `SplicedError(GONE)` after release or a restart."""
        if self._released or self._pid != os.getpid():
            raise SplicedError(Code.GONE, f"lease {self._lease} is released")
        if self._attachment is not attachment:
            raise SplicedError(Code.GONE, f"lease {self._lease} belongs to a previous daemon")
        return self._lease

    def _memory(self) -> Attachment:
        if self._released or self._pid != os.getpid():
            raise SplicedError(Code.GONE, f"lease {self._lease} is released")
        return self._attachment

    def __del__(self) -> None:
        if not self._released and self._pid == os.getpid():
            self._released = True
            # Takes no lock: this may run inside any function.
            self._attachment.drop(Return(Op.RELEASE, self._tenant), self._lease)


_once = threading.Lock()  # two threads may release the same lease


def _forked() -> None:
    """Makes a new lock in a forked child: its parent may have held the old one."""
    global _once
    _once = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def take(held: Held) -> bool:
    """Claims a lease for release. Returns False if another thread has claimed it, or if this
    process is a forked child."""
    if held._pid != os.getpid():
        return False
    with _once:
        released, held._released = held._released, True
    return not released


def release_all(objects: Sequence[Held | None]) -> list[bool]:
    """Releases many leases with few requests. Returns, for each lease, what its `release` returns;
    False for an entry that is None."""
    good = [False] * len(objects)
    batches: dict[tuple[int, int], list[int]] = {}
    for i, held in enumerate(objects):
        if held is None or held._pid != os.getpid():
            continue
        with _once:
            released, held._released = held._released, True
        if released:
            good[i] = held._good
            continue
        batches.setdefault((id(held._attachment), held._tenant), []).append(i)
    for rows in batches.values():
        for at in range(0, len(rows), MAX_IDS):
            _release(objects, rows[at : at + MAX_IDS], good)
    return good


def _release(objects: Sequence[Held | None], rows: list[int], good: list[bool]) -> None:
    """Releases the leases of one attachment and tenant."""
    batch = [(i, held) for i in rows if (held := objects[i]) is not None]
    first = batch[0][1]
    attachment = first._attachment
    ids = [held._lease for _, held in batch]
    codes = attachment.give_back(Return(Op.RELEASE, first._tenant), ids, first._timeout)
    if codes is None:
        # Without the daemon's answer the outcome is known only if the daemon is dead.
        verdict = attachment.ended and attachment.intact
        answers = [verdict] * len(ids)
    else:
        answers = [code == Code.OK for code in codes]
    attachment.tally.add("doubtful", answers.count(False))
    for (i, held), answer in zip(batch, answers, strict=True):
        held._good = good[i] = answer
        attachment.release()


class Stored:
    """The data of a segment, or of one node of a checkpoint."""

    __slots__ = ("digests", "extents", "layout")

    def __init__(self, layout: Layout, extents: list[Extent], digests: Sequence[int]) -> None:
        """Raises ValueError for digests that do not fit the layout."""
        self.layout = layout
        self.extents = extents
        self.digests = tuple(digests)
        if self.digests:
            want = sum(chunks(part.nbytes) for part in layout.parts)
            if len(self.digests) != want:
                raise ValueError(f"{len(self.digests)} digests, want {want}")

    def part(self, memory: memoryview, i: int) -> memoryview:
        part = self.layout.parts[i]
        if not present(self.extents, part.offset, part.nbytes):
            raise SplicedError(Code.GONE, f"part {i} is not in memory")
        return cut(self.extents, memory, part.offset, part.nbytes)

    def good(self, memory: memoryview) -> bool | None:
        digest = xxh3()
        if digest is None or not self.digests:
            return None
        at = 0
        for part in self.layout.parts:
            n = chunks(part.nbytes)
            if present(self.extents, part.offset, part.nbytes):
                data = cut(self.extents, memory, part.offset, part.nbytes)
                for chunk in range(n):
                    piece = data[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
                    if digest(piece) != self.digests[at + chunk]:
                        return False
            at += n
        return True


class Segment(Held):
    """One segment leased for reading."""

    def __init__(
        self,
        held: tuple[Attachment, int, int, float],
        key: bytes,
        rows: tuple[int, int],
        stored: Stored,
    ) -> None:
        super().__init__(*held)
        self.key = key
        self.begin, self.tokens = rows
        """First interior token, local to the segment, and number of interior tokens."""
        self._stored = stored

    @property
    def layout(self) -> Layout:
        """Returns where the parts are."""
        return self._stored.layout

    @property
    def errors(self) -> tuple[float, float]:
        """Returns `Layout.errors`: a bound on how much T differs from the published one, and a
        bound for S, keys and values. 0 if they are identical."""
        return self._stored.layout.errors

    def part(self, i: int) -> memoryview:
        """Returns the bytes of part i, read-only: a view if they lie in one run, else a copy. For a
        packed part these are the packed bytes, which `walk.unpack` decodes.

        They are valid only if `release` returns True. Raises `SplicedError(GONE)` after release.
        """
        return self._stored.part(self._memory().arena, i)

    def view(self) -> memoryview | None:
        """Returns all bytes in the layout's order, None if they lie in several runs."""
        memory = self._memory().arena
        extents = self._stored.extents
        return cut(extents, memory, 0, self.layout.nbytes) if len(extents) == 1 else None

    def verify(self) -> bool | None:
        """Returns whether the bytes in memory match the digests that were acquired with them.

        Returns None if no digests were acquired, or if xxhash is not installed.
        """
        attachment = self._memory()
        good = self._stored.good(attachment.arena)
        if good is False:
            attachment.tally.add("corrupt")
        return good


class Checkpoint(Held):
    """A saved prefix leased for reading. It consists of nodes, consecutive ranges of the prefix."""

    def __init__(
        self,
        held: tuple[Attachment, int, int, float],
        kind: Accept,
        nodes: tuple[tuple[int, int], ...],
        stored: list[Stored],
        kinds: bytes,
    ) -> None:
        super().__init__(*held)
        self.kind = kind
        self.nodes = nodes
        """The tokens [begin, end) whose attention rows each node has."""
        self.kinds = kinds
        """The kind of each node. A node of kind `Accept.ROWS` has linear layers' rows, no
        states."""
        self._nodes = stored

    @property
    def tokens(self) -> int:
        """Number of tokens that the checkpoint covers."""
        return self.nodes[-1][1]

    @property
    def states(self) -> int:
        """Number of tokens before the states of the last node that has states. `Model.replay_rows`
        rebuilds the states after later tokens."""
        whole = [
            end
            for (_, end), kind in zip(self.nodes, self.kinds, strict=True)
            if kind != Accept.ROWS
        ]
        return max(whole, default=0)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Returns where the parts of each node are."""
        return tuple(stored.layout for stored in self._nodes)

    def part(self, node: int, i: int) -> memoryview:
        """Returns the bytes of part i of a node, as `Segment.part`.

        Only the last node's states and convolution tails are needed. The states and tails of
        earlier nodes may be absent from memory: then this call raises `SplicedError(GONE)`.
        """
        return self._nodes[node].part(self._memory().arena, i)

    def verify(self) -> bool | None:
        """`Segment.verify` of all nodes."""
        attachment = self._memory()
        answers = [stored.good(attachment.arena) for stored in self._nodes]
        if False in answers:
            attachment.tally.add("corrupt")
            return False
        return None if None in answers else True


class Slot(Held):
    """A result of compose, rotate or assemble in memory that only this client sees.

    For one thread at a time.
    """

    def __init__(self, held: tuple[Attachment, int, int, float]) -> None:
        super().__init__(*held)
        self.offset = self.nbytes = 0
        """Offset in the slots region."""
        self.rows = 0
        """Rows that rotate or assemble packed."""
        self.corrupt = False
        """Whether a failed request may have written part of the slot, or may still be writing."""

    def place(self, offset: int, nbytes: int, rows: int) -> None:
        """Stores the position that a reply reports."""
        self.offset, self.nbytes, self.rows = offset, nbytes, rows
        self.corrupt = False

    def lease_on(self, attachment: Attachment) -> int:
        if self.corrupt:
            raise SplicedError(Code.GONE, f"slot {self._lease}: a call may still be writing")
        return super().lease_on(attachment)

    def view(self) -> memoryview:
        """Returns the result, valid until release or until the slot is given to another call to
        write into."""
        memory = self._memory().slots
        if self.corrupt:
            raise SplicedError(Code.GONE, f"slot {self._lease} is empty")
        return memory[self.offset : self.offset + self.nbytes]
