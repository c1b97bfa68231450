"""Leases in the device arena: copies of segments and checkpoints on the GPU.

A stream runs its work later than the calls that queue it. So `release_after` releases a lease only
once the stream has passed a point. `release` is for a stream that was synchronized.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.device_memory import DeviceMemory
from spliced_connector.client.device_releases import Passing
from spliced_connector.client.extents import ABSENT, present
from spliced_connector.client.lease import Held, Slot, Stored, take
from spliced_connector.client.terms import Accept
from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu import DevicePtr, Run, Stream, joined
from spliced_connector.model import Layout

HeldAt = tuple[Attachment, int, int, float]
"""Attachment, tenant, lease, timeout."""


class DeviceHeld(Held):
    """A lease of device memory."""

    def __init__(self, held: HeldAt, device: DeviceMemory) -> None:
        super().__init__(*held)
        self.device = device

    def __del__(self) -> None:
        if not self._released and self._pid == os.getpid():
            self._released = True
            # A stream may still read the leased memory. `drop` takes no lock, because this
            # destructor may run inside any function.
            self.device.releases.drop(self._tenant, self._lease)


def release_after(
    stream: Stream, objects: Sequence[DeviceHeld], *, signal: bool = False
) -> Passing | None:
    """Releases leases of one client and tenant once a stream has passed this point.

    The leases must not be used any more, except by work that is already queued. The call does not
    wait; `Passing.good` reports later whether the bytes were valid throughout. The call returns
    None if there are no leases. Raises ValueError for leases of different clients, and `CudaError`;
    then the leases are unchanged.
    """
    if not objects:
        return None
    device, tenant = objects[0].device, objects[0]._tenant
    if any(held.device is not device or held._tenant != tenant for held in objects):
        raise ValueError("leases of different clients or tenants")
    taken = [held for held in objects if take(held)]
    try:
        leases = [held._lease for held in taken]
        return device.releases.after(stream, tenant, leases, signal=signal)
    except SplicedError:
        for held in taken:
            held._released = False
        raise


def _runs(stored: Stored, device: DeviceMemory, i: int) -> list[Run]:
    """Returns the runs of GPU memory that hold the part with index i."""
    part = stored.layout.parts[i]
    if not present(stored.extents, part.offset, part.nbytes):
        raise SplicedError(Code.GONE, f"part {i} is not in memory")
    offset, left = part.offset, part.nbytes
    runs: list[Run] = []
    for extent in stored.extents:
        if left == 0:
            break
        if offset >= extent.nbytes:
            offset -= extent.nbytes
            continue
        n = min(extent.nbytes - offset, left)
        if extent.offset != ABSENT:
            runs += device.arena.runs(extent.offset + offset, n)
        offset, left = 0, left - n
    return joined(runs)


class DeviceSegment(DeviceHeld):
    """One segment leased on the GPU."""

    def __init__(
        self, held: HeldAt, device: DeviceMemory, key: bytes, rows: tuple[int, int], stored: Stored
    ) -> None:
        super().__init__(held, device)
        self.key = key
        self.begin, self.tokens = rows
        """First interior token, local to the segment, and number of interior tokens."""
        self._stored = stored

    @property
    def layout(self) -> Layout:
        """Returns where the parts are."""
        return self._stored.layout

    def runs(self, i: int) -> list[Run]:
        """Returns where the bytes of part i lie, in order. Raises `SplicedError(GONE)` after
        release."""
        self._memory()
        return _runs(self._stored, self.device, i)


class DeviceCheckpoint(DeviceHeld):
    """A saved prefix leased on the GPU. It consists of nodes, consecutive ranges of the prefix."""

    def __init__(
        self,
        held: HeldAt,
        device: DeviceMemory,
        kind: Accept,
        nodes: tuple[tuple[int, int], ...],
        stored: list[Stored],
    ) -> None:
        super().__init__(held, device)
        self.kind = kind
        self.nodes = nodes
        """The tokens [begin, end) whose attention rows each node has."""
        self._nodes = stored

    @property
    def tokens(self) -> int:
        """Number of tokens that the checkpoint covers."""
        return self.nodes[-1][1]

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Returns where the parts of each node are."""
        return tuple(stored.layout for stored in self._nodes)

    def runs(self, node: int, i: int) -> list[Run]:
        """Returns where part i of a node lies, as `DeviceSegment.runs`.

        Only the states and convolution tails of the last node are used.
        """
        self._memory()
        return _runs(self._nodes[node], self.device, i)


class DeviceSlot(DeviceHeld, Slot):
    """A result of compose, rotate or assemble in the private chunks of this client.

    The daemon has written it before the call returns, so no stream needs to wait. For one thread
    at a time.
    """

    def __init__(self, held: HeldAt, device: DeviceMemory) -> None:
        Slot.__init__(self, held)
        self.device = device

    def view(self) -> memoryview:
        """Raises `SplicedError`: the bytes are on the GPU, at `address`."""
        raise SplicedError(Code.UNSUPPORTED, "a slot on a GPU has no host view")

    def address(self, offset: int, nbytes: int) -> DevicePtr:
        """Returns the GPU address of `nbytes` bytes at an offset of the slot. Raises
        `SplicedError`: GONE after release, INVALID for bytes outside the slot."""
        self._memory()
        if self.corrupt:
            raise SplicedError(Code.GONE, f"slot {self._lease} is empty")
        if offset < 0 or nbytes < 0 or offset > self.nbytes - nbytes:
            raise SplicedError(Code.INVALID, f"{nbytes} bytes at {offset} of {self.nbytes}")
        return self.device.private.address(self.offset + offset, nbytes)
