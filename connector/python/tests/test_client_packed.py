"""Segments of a profile with a tolerance: what is leased may have packed parts."""

from __future__ import annotations

import os
import struct
from dataclasses import replace

import pytest

from client_samples import SMALL, Connect, wait_until
from fake_daemon import FakeDaemon
from spliced_connector.client import Reason, Status, Tier, release_all
from spliced_connector.errors import Code
from spliced_connector.model import Profile
from spliced_connector.wire import (
    AcquirePacked,
    AcquireReply,
    Feature,
    HelloRequest,
    MatchEstimates,
    MatchReply,
    Op,
)

PACKING = replace(SMALL, tolerance=0.02)
PROFILE = Profile(PACKING)
TOKENS = 8

# Of T [4, 16, 16] in F16 and S [4, 16, 16] in F32: 4 and 3 times 64 bytes.
PACKED = struct.pack("<2f", 0.0078125, 0.015625) + bytes([4, 3])
OTHER = struct.pack("<2f", 0.0, 0.0078125) + bytes([2, 1])


@pytest.fixture
def packing(fake: FakeDaemon) -> FakeDaemon:
    """A daemon that packs."""
    fake.hello = replace(fake.hello, features=Feature.PACKED)
    return fake


def reply(*rows: bytes | None, counts: list[int] | None = None) -> AcquireReply:
    """Leases one behind another in the arena, laid out as is said; None is a miss."""
    sizes = [0 if how is None else PROFILE.packed_layout(TOKENS, how).nbytes for how in rows]
    begins = [sum(sizes[:i]) for i in range(len(sizes))]
    found = [int(how is not None) for how in rows]
    said = b"".join(how or b"" for how in rows)
    return AcquireReply(
        codes=[Code.MISS if how is None else Code.OK for how in rows],
        leases=[11 + i if one else 0 for i, one in enumerate(found)],
        bytes=sizes,
        begins=[0] * len(rows),
        tokens=[TOKENS * one for one in found],
        extent_count=found,
        extent_off=[at for at, one in zip(begins, found, strict=True) if one],
        extent_len=[size for size in sizes if size],
        digest_count=[0] * len(rows),
        packed=AcquirePacked(counts or [len(how or b"") for how in rows], said) if said else None,
    )


def test_packing_is_asked_for(packing: FakeDaemon, connect: Connect) -> None:
    connect(packing.socket)
    hello = packing.next(Op.HELLO).message
    assert isinstance(hello, HelloRequest)
    assert hello.features & Feature.PACKED


@pytest.mark.parametrize(
    ("said", "want"),
    [
        (MatchEstimates(2**32 - 1, 0.0, [2**32 - 1] * 3, [0.0, 0.0, 0.015625]), [0, 0, 0.015625]),
        (None, [0.02, 0, 0.02]),  # of a daemon that does not say, as far as they may be
    ],
)
def test_a_match_says_how_far_off_hits_are(
    packing: FakeDaemon, connect: Connect, said: MatchEstimates | None, want: list[float]
) -> None:
    packing.hello = replace(packing.hello, features=Feature.PACKED | Feature.ESTIMATES)
    status = bytes([Status.HIT, Status.MISS, Status.HIT])
    tier = bytes([Tier.DRAM, Tier.NONE, Tier.DRAM])
    reason = bytes([Reason.NONE, Reason.UNKNOWN, Reason.NONE])
    answer = MatchReply(status=status, tier=tier, reason=reason, tokens=[8, 0, 8], estimates=said)
    packing.on(Op.MATCH, lambda request: request.reply(answer))
    found = connect(packing.socket).model(PACKING).match(keys=[bytes([i]) * 32 for i in range(3)])
    assert not found.trouble
    assert list(found.error) == want
    assert found.within(None) == [True, False, True]
    assert found.within(0.02) == [True, False, True]
    assert found.within(0.0) == [said is not None, False, False]


def test_leases_are_laid_out_by_what_is_in_them(packing: FakeDaemon, connect: Connect) -> None:
    answer = reply(PACKED, None, b"", OTHER)
    packing.on(Op.ACQUIRE, lambda request: request.reply(answer))
    model = connect(packing.socket).model(PACKING)
    content = os.urandom(sum(answer.bytes))
    os.pwrite(packing.regions[0], content, 0)
    first, none, plain, last = model.acquire([bytes([i]) * 32 for i in range(4)])
    assert first is not None and plain is not None and last is not None
    assert none is None
    assert first.errors == (0.0078125, 0.015625)
    assert plain.errors == (0.0, 0.0)
    assert last.errors == (0.0, 0.0078125)
    assert plain.layout == PROFILE.segment_layout(TOKENS)
    assert first.layout.nbytes < plain.layout.nbytes
    at = 0
    for segment, how in ((first, PACKED), (plain, b""), (last, OTHER)):
        assert segment.layout == PROFILE.packed_layout(TOKENS, how)
        for i, part in enumerate(segment.layout.parts):
            want = content[at + part.offset : at + part.offset + part.nbytes]
            assert bytes(segment.part(i)) == want
        at += segment.layout.nbytes
    assert release_all([first, plain, last]) == [True] * 3


@pytest.mark.parametrize(
    "bad",
    [
        replace(reply(PACKED), packed=None),
        replace(reply(b""), packed=AcquirePacked([len(PACKED)], PACKED)),
        replace(reply(PACKED), packed=AcquirePacked([len(OTHER)], OTHER)),
        replace(reply(PACKED), packed=AcquirePacked([len(PACKED) + 1], PACKED + b"\1")),
        replace(reply(PACKED), packed=AcquirePacked([4], PACKED[:4])),
        replace(reply(PACKED), packed=AcquirePacked([10], b"\xff" * 8 + PACKED[8:])),
        reply(PACKED, OTHER, counts=[len(PACKED) + 1, len(OTHER) - 1]),
    ],
    ids=["not said", "not so", "of another", "too long", "too short", "no errors", "of two"],
)
def test_what_cannot_be_is_no_lease(
    packing: FakeDaemon, connect: Connect, bad: AcquireReply
) -> None:
    packing.on(Op.ACQUIRE, lambda request: request.reply(bad))
    client = connect(packing.socket)
    model = client.model(PACKING)
    assert model.acquire([bytes(32)] * len(bad.codes)) == [None] * len(bad.codes)
    wait_until(lambda: client.counters.malformed == 1)


def test_packed_parts_of_a_profile_without_a_tolerance(
    packing: FakeDaemon, connect: Connect
) -> None:
    packing.on(Op.ACQUIRE, lambda request: request.reply(reply(PACKED)))
    client = connect(packing.socket)
    assert client.model(SMALL).acquire([bytes(32)]) == [None]
    wait_until(lambda: client.counters.malformed == 1)


def test_a_daemon_that_does_not_pack(fake: FakeDaemon, connect: Connect) -> None:
    client = connect(fake.socket)
    model = client.model(PACKING)
    assert not model.attached
    assert model.refused.startswith("unsupported: profile: tolerance 0.02")
    assert model.acquire([bytes(32)]) == [None]
    assert not model.wait_attached(10), "it is decided"
    assert Op.PROFILE not in fake.all
    exact = client.model(SMALL)
    assert exact.attached
    assert client.attached
