"""Segments and checkpoints go to a daemon and come back the same."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from client_samples import (
    LARGE,
    SMALL,
    Connect,
    ids,
    key_of,
    new_checkpoint,
    new_segment,
    publish_one,
    spec_of,
    wait_again,
)
from running import Daemon, StartDaemon
from spliced_connector.client import (
    Accept,
    CaptureTiming,
    Level,
    NewSegment,
    Query,
    Reason,
    Sample,
    Status,
    Tier,
    WalkTiming,
    Way,
    release_all,
)
from spliced_connector.client import publish as storing
from spliced_connector.client.connection.checksum import Digest, xxh3
from spliced_connector.client.registration import Registration
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import NOTHING

MIB = 1 << 20

needs_digests = pytest.mark.skipif(xxh3() is None, reason="xxhash is not installed")


def test_a_segment_comes_back_as_it_was_published(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL, block_tokens=16)
    key, new = publish_one(model)
    found = model.match(keys=[key, bytes(32)])
    assert found.trouble == ""
    assert found.hits == [True, False]
    assert (list(found.tier), list(found.reason)) == ([Tier.DRAM, 0], [0, Reason.UNKNOWN])
    assert list(found.tokens) == [new.spec.interior[1], 0]
    segment, missing = model.acquire([key, bytes(32)])
    assert missing is None
    assert segment is not None
    assert (segment.key, segment.begin, segment.tokens) == (key, *new.spec.interior)
    assert segment.layout == model.profile.segment_layout(new.spec)
    assert [segment.part(i) for i in range(len(new.parts))] == list(new.parts)
    assert segment.part(0).readonly
    whole = segment.view()
    assert whole is not None
    assert whole.nbytes == segment.layout.nbytes
    assert segment.valid
    assert segment.release()
    assert segment.release(), "the first answer stands"
    assert not segment.valid
    with pytest.raises(SplicedError, match="released"):
        segment.part(0)


def test_parts_of_many_chunks_go_through_little_staging(
    start_daemon: StartDaemon, connect: Connect
) -> None:
    daemon = start_daemon("-staging=2MiB")
    model = connect(daemon.socket).model(LARGE)
    new = new_segment(model, 700)
    layout = model.profile.segment_layout(new.spec)
    assert layout.nbytes > 2 * MIB
    assert max(part.nbytes for part in layout.parts) > MIB
    assert model.publish([new]) == [Code.OK]
    (segment,) = model.acquire([key_of(model, new)])
    assert segment is not None
    assert all(segment.part(i) == part for i, part in enumerate(new.parts))
    assert segment.release()


def test_a_part_may_be_written_straight_into_shared_memory(
    daemon: Daemon, connect: Connect
) -> None:
    model = connect(daemon.socket).model(LARGE)
    new = new_segment(model, 700)
    runs: list[tuple[int, int]] = []
    i, source = next(
        (i, part) for i, part in enumerate(new.parts) if isinstance(part, bytes) and len(part) > MIB
    )

    def write(offset: int, target: memoryview) -> None:
        runs.append((offset, len(target)))
        target[:] = source[offset : offset + len(target)]

    parts = [write if j == i else part for j, part in enumerate(new.parts)]
    assert model.publish([replace(new, parts=parts)]) == [Code.OK]
    assert runs == [(0, MIB), (MIB, len(source) - MIB)]
    (segment,) = model.acquire([key_of(model, new)])
    assert segment is not None
    assert segment.part(i) == source
    assert segment.release()


def test_a_source_that_raises_leaves_no_reservation(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket).model(SMALL)
    new = new_segment(model)

    def broken(offset: int, target: memoryview) -> None:
        raise RuntimeError("no bytes")

    with pytest.raises(RuntimeError, match="no bytes"):
        model.publish([replace(new, parts=[broken, *new.parts[1:]])])
    assert model.publish([new]) == [Code.OK], "nobody holds or fills it"


def test_a_segment_is_published_once(daemon: Daemon, connect: Connect) -> None:
    first, second = (connect(daemon.socket) for _ in range(2))
    new = new_segment(first.model(SMALL))
    assert first.model(SMALL).publish([new]) == [Code.OK]
    other = second.model(SMALL)
    assert other.publish([new, new_segment(other, seed=1)]) == [Code.EXISTS, Code.OK]
    assert (second.counters.published, second.counters.unpublished) == (1, 1)
    assert second.counters.refused == 0, "that somebody has it is no trouble"


def test_wrong_digests_publish_nothing(
    daemon: Daemon, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = connect(daemon.socket).model(SMALL)
    new = new_segment(model)
    right = storing._digest

    def wrong(r: Registration) -> Digest:
        digest = right(r)
        return lambda data: digest(data) ^ 1

    with monkeypatch.context() as patch:
        patch.setattr(storing, "_digest", wrong)
        assert model.publish([new]) == [Code.CORRUPT]
    assert model.match(keys=[key_of(model, new)]).hits == [False]
    assert model.publish([new]) == [Code.OK], "the reservation was given back"


def test_what_does_not_fit_the_layout_is_not_sent(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL)
    new = new_segment(model)
    calls = client.counters.calls
    cut = [*new.parts[:-1], b"short"]
    few = replace(new, tokens=new.tokens[:-1])
    assert (
        model.publish([replace(new, parts=cut), replace(new, parts=new.parts[1:]), few])
        == [Code.INVALID] * 3
    )
    assert client.counters.calls == calls
    assert client.counters.invalid == 3


@needs_digests
def test_leased_bytes_can_be_verified(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket).model(LARGE)
    key, _ = publish_one(model, 300)
    with_digests, without = (model.acquire([key], digests=asked)[0] for asked in (True, False))
    assert with_digests is not None
    assert without is not None
    assert with_digests.verify() is True
    assert without.verify() is None
    assert release_all([with_digests, None, without]) == [True, False, True]


def test_more_keys_than_a_frame_holds(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket, timeout=5.0).model(SMALL)
    key, _ = publish_one(model)
    rng = random.Random(1)
    keys = [rng.randbytes(32) for _ in range(5000)]
    for at in (0, 2047, 2048, 4999):
        keys[at] = key
    hits = [i for i, hit in enumerate(model.match(keys=keys).hits) if hit]
    assert hits == [0, 2047, 2048, 4999]
    segments = model.acquire(keys)
    assert [i for i, segment in enumerate(segments) if segment is not None] == hits
    assert release_all(segments).count(True) == len(hits)


def test_all_or_none(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket).model(SMALL)
    keys = [publish_one(model, seed=seed)[0] for seed in range(3)]
    assert model.acquire([*keys, bytes(32)], all=True) == [None] * 4
    together = model.acquire(keys, all=True)
    assert None not in together
    assert release_all(together) == [True] * 3


def test_a_chain_of_checkpoints(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket).model(SMALL, block_tokens=16)
    prompt = ids(100)
    first = new_checkpoint(model, prompt, 32)
    second = new_checkpoint(model, prompt, 80, parent=32, seed=1)
    assert model.save([first, second]) == [Code.OK, Code.OK]
    positions = [16, 32, 64, 80]
    hashes = model.prefix_hashes(prompt, positions)
    assert hashes is not None
    found = model.match(positions, hashes)
    assert (found.prefix_tokens, found.prefix_index) == (80, 3)
    assert (found.prefix_kind, found.prefix_tier) == (Accept.EXACT, Tier.DRAM)
    checkpoint = model.load(hashes[3])
    assert checkpoint is not None
    assert checkpoint.nodes == ((0, 32), (32, 80))
    assert (checkpoint.tokens, checkpoint.kind) == (80, Accept.EXACT)
    assert [checkpoint.part(1, i) for i in range(len(second.parts))] == list(second.parts)
    for i, part in enumerate(checkpoint.layouts[0].parts):
        if part.kind in ("K", "V"):
            assert checkpoint.part(0, i) == first.parts[i]
    assert checkpoint.release()
    assert model.load(hashes[2]) is None, "nothing was saved there"


def test_spliced_checkpoints_are_told_apart(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket).model(SMALL, block_tokens=16)
    prompt = ids(48)
    saved = new_checkpoint(model, prompt, 48, kind=Accept.SPLICED)
    assert model.save([saved]) == [Code.OK]
    assert model.load(saved.hash, Accept.EXACT) is None
    assert model.match([48], [saved.hash]).prefix_reason == Reason.OTHER_KIND
    checkpoint = model.load(saved.hash, Accept.ANY)
    assert checkpoint is not None
    assert checkpoint.kind == Accept.SPLICED
    assert checkpoint.release()


def test_a_parent_that_is_not_there_is_a_code(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL, block_tokens=16)
    orphan = new_checkpoint(model, ids(64), 64, parent=32)
    (code,) = model.save([orphan])
    assert code not in (Code.OK, Code.EXISTS)
    wrong = replace(orphan, parent_hash=NOTHING)
    assert model.save([wrong]) == [Code.INVALID]


def test_a_checkpoint_that_is_refused_says_which_field_is_wrong(
    daemon: Daemon, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    model = connect(daemon.socket).model(SMALL)
    assert model.save([new_checkpoint(model, ids(64), 64)]) == [Code.INVALID]
    assert "registered without block_tokens" in caplog.text
    assert "hash" in caplog.text


def test_tenants_share_nothing(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket, tenants=(("", ""), ("blue", "blue-token")))
    plain, blue = client.model(SMALL), client.model(SMALL, tenant="blue")
    assert (plain.salt, blue.salt) == (b"", b"blue-salt")
    key, new = publish_one(plain)
    assert key_of(blue, new) != key
    assert blue.match(keys=[key]).hits == [False]
    assert blue.acquire([key]) == [None]
    assert blue.publish([new]) == [Code.OK], "under its own key"
    (segment,) = blue.acquire([key_of(blue, new)])
    assert segment is not None
    assert segment.release()


def test_a_wrong_token_is_refused(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket, tenants=(("blue", "red"),))
    assert not client.attached
    assert "denied" in client.state
    model = client.model(SMALL)
    assert model.match(keys=[bytes(32)]).trouble
    assert model.publish([NewSegment(spec_of(model, 64), ids(64), [])]) == [Code.UNAVAILABLE]


def test_quota(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket, tenants=(("small", ""),)).model(SMALL)
    codes = model.publish([new_segment(model, 2048)])
    assert codes == [Code.QUOTA]


def test_full(start_daemon: StartDaemon, connect: Connect) -> None:
    daemon = start_daemon("-arena=1MiB")
    client = connect(daemon.socket)
    model = client.model(SMALL)
    held = []
    for seed in range(100):
        new = new_segment(model, 1024, seed)
        codes = model.publish([new])
        if codes != [Code.OK]:
            break
        held += model.acquire([key_of(model, new)])
    assert codes == [Code.FULL], "everything is leased"
    assert release_all(held) == [True] * len(held)
    assert client.counters.refused == 1


def test_a_level_that_a_disk_gives(start_daemon: StartDaemon, connect: Connect) -> None:
    daemon = start_daemon(disk=True)
    client = connect(daemon.socket)
    model = client.model(SMALL)
    new = new_segment(model)
    assert model.publish([new], level=Level.LOGGED) == [Code.OK]
    daemon.kill()
    daemon.start()
    wait_again(model)
    key = key_of(model, new)
    found = model.match(keys=[key])
    assert list(found.status) == [Status.HIT]
    (segment,) = model.acquire([key], wait=5.0)
    assert segment is not None
    assert [segment.part(i) for i in range(len(new.parts))] == list(new.parts)
    assert segment.release()


def test_advice(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL, block_tokens=16)
    key, new = publish_one(model, 64)
    prompt = [*new.tokens, *ids(64, 9)]
    query = Query(
        prompt,
        match=model.match(keys=[key, bytes(32)]),
        segments=((0, 64), (64, 32)),
        cuts=(64,),
        samples=(Sample(0, 128, 0.01), Sample(5, 5, 1.0), Sample(0, 8, 0.0)),
    )
    advice = model.advise(query)
    assert advice is not None
    assert Way.RECOMPUTE <= advice.way <= Way.REPLAY
    assert len(advice.segments) == 2
    assert not advice.segments[0].publish, "it is there"
    assert all(at.tokens % 16 == 0 for at in advice.checkpoints)
    again = model.advise(query)
    assert again is not None
    assert again.seen_tokens == len(prompt)
    assert again.splice is not None, "the daemon reports how much a splice takes"
    assert 0 <= again.splice <= 2
    senseless = (WalkTiming(0, 0, 1.0), WalkTiming(9, 9, 0.0), CaptureTiming(0, 1.0))
    taken = (WalkTiming(9, 90, 0.1), CaptureTiming(9, 0.1))
    assert model.advise(replace(query, samples=senseless + taken)) is not None
    assert model.advise(replace(query, cuts=(1000,))) is None
    assert (client.counters.advised, client.counters.unadvised) == (3, 1)


def test_two_engines_share_what_one_has_warmed(daemon: Daemon, connect: Connect) -> None:
    warm = connect(daemon.socket).model(SMALL, engine="one")
    key, new = publish_one(warm)
    other = connect(daemon.socket).model(SMALL, engine="two")
    (segment,) = other.acquire([key])
    assert segment is not None
    assert segment.part(0) == new.parts[0]
    assert segment.release()


def test_other_weights_share_nothing(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    first = client.model(SMALL)
    second = client.model(replace(SMALL, adapter="lora"))
    key, new = publish_one(first)
    assert key_of(second, new) != key
    assert second.match(keys=[key]).hits == [False]


def test_a_layout_of_the_daemon_that_differs_is_a_refusal(
    daemon: Daemon, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spliced_connector.model import Profile

    monkeypatch.setattr(Profile, "segment_bytes", lambda self, n: 64)
    client = connect(daemon.socket)
    model = client.model(SMALL)
    assert not model.attached
    assert "invalid" in model.refused
    assert model.match(keys=[bytes(32)]).trouble


def test_the_log_says_once_why_nothing_is_stored(
    daemon: Daemon, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    model = connect(daemon.socket, tenants=(("small", ""),)).model(SMALL)
    refused = [model.publish([new_segment(model, 1000, seed)]) for seed in range(2)]
    assert refused == [[Code.QUOTA], [Code.QUOTA]]
    said = [r.getMessage() for r in caplog.records if "were not stored" in r.getMessage()]
    assert said == [
        "segments or checkpoints were not stored: the tenant is over its quota"
        " (0.0 of 32.0 MiB in use in the public pool, 0.0 of 32.0 MiB in use in the private pool)"
    ]


def test_stats(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    assert len(client.stats()) > 20
