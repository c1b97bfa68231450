"""Round trips of the client, compared with round trips of the bare socket.

    python bench/client.py --daemon ../../bin/spliced
    python bench/client.py --socket /run/spliced/spliced.sock --json

The lower bound is an echo of as many bytes between two Python processes. The daemon must not serve
a real model named "bench", because a segment of that name is stored.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from spliced_connector.client import Client, Lookup, Match, Model, NewSegment, Options, Query
from spliced_connector.client.connection.checksum import xxh3
from spliced_connector.model import (
    Attention,
    Conv,
    DType,
    Family,
    Identity,
    KeyMode,
    Kind,
    Layer,
    Linear,
    Rope,
)
from spliced_connector.serving.asking import match_and_advise

IDENTITY = Identity(
    "bench",
    bytes(range(32)),
    (
        Layer(
            Kind.LINEAR,
            linear=Linear(
                Family.GDN, 2, 4, 64, 64, DType.F32, DType.F16, Conv(4, (128, 128, 256), DType.BF16)
            ),
        ),
        Layer(
            Kind.FULL,
            attention=Attention(2, 64, 64, DType.BF16, KeyMode.AT_ZERO, Rope(16, 10000.0)),
        ),
    ),
)
TOKENS = 256


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--daemon", help="program to start for the measurement")
    where.add_argument("--socket", help="socket of a running daemon")
    parser.add_argument("--count", type=int, default=3000, help="round trips of each kind")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    args = parser.parse_args()
    with running(args.daemon) if args.daemon else given(args.socket) as path:
        rows = measure(path, args.count)
    if args.json:
        json.dump({"xxhash": xxh3() is not None, "rows": rows}, sys.stdout, indent=1)
        print()
        return
    print(f"{'round trip':32} {'p50 us':>10} {'p99 us':>10}")
    for name, times in rows.items():
        print(f"{name:32} {times['p50_us']:10.1f} {times['p99_us']:10.1f}")


@contextmanager
def given(path: str) -> Iterator[str]:
    """Uses a running daemon."""
    yield path


@contextmanager
def running(program: str) -> Iterator[str]:
    """Starts a daemon."""
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "s.sock")
        flags = [f"-socket={path}", "-http=off", "-arena=64MiB", "-private=64MiB"]
        process = subprocess.Popen([program, *flags, "-log-level=error"])
        try:
            yield path
        finally:
            process.terminate()
            process.wait()


def measure(path: str, count: int) -> dict[str, dict[str, float]]:
    """Returns percentiles of each kind of round trip, in microseconds."""
    rows = {f"echo of {size} bytes": echo(size, count) for size in (64, 1120)}
    client = Client(Options(socket=path, name="bench", timeout=1.0))
    try:
        model = client.model(IDENTITY, block_tokens=16)
        if not model.wait_attached(10):
            raise SystemExit(client.state)
        rows |= calls(model, count)
        if client.counters.late or client.counters.lost:
            raise SystemExit(f"not a clean run: {client.counters}")
    finally:
        client.close()
    return rows


def calls(model: Model, count: int) -> dict[str, dict[str, float]]:
    """Measures round trips to the daemon."""
    spec = model.profile.first_spec(TOKENS)
    tokens = list(range(TOKENS))
    parts = [bytes(part.nbytes) for part in model.profile.segment_layout(spec).parts]
    model.publish([NewSegment(spec, tokens, parts)])
    key = model.segment_key(spec, tokens)
    if key is None:
        raise SystemExit("no salt")
    keys = [key] * 32
    query = Query(tokens, record=False)
    # A prompt of 32 segments, as a scheduler asks about it.
    lookup = Lookup(keys=keys)
    begins = [(begin, TOKENS) for begin in range(0, 32 * TOKENS, TOKENS)]
    prompt = Query(tokens * 32, record=False, segments=begins)

    def question(_: Match | None) -> Query:
        return prompt

    def lease() -> None:
        (segment,) = model.acquire([key])
        if segment is None or not segment.release():
            raise SystemExit("the segment is not there")

    return {
        "match of 1 key": percentiles(lambda: model.match(keys=keys[:1]), count),
        "match of 32 keys": percentiles(lambda: model.match(keys=keys), count),
        "acquire and release of 1 key": percentiles(lease, count),
        f"advise for {TOKENS} tokens": percentiles(lambda: model.advise(query), count),
        "32 segments: match, then advise": percentiles(
            lambda: match_and_advise(model, lookup, question, at_once=False), count
        ),
        "32 segments: advise with a match": percentiles(
            lambda: match_and_advise(model, lookup, question), count
        ),
    }


def percentiles(call: Callable[[], object], count: int) -> dict[str, float]:
    """Times a call."""
    took = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        call()
        took.append(time.perf_counter_ns() - begin)
    took.sort()
    return {"p50_us": took[count // 2] / 1e3, "p99_us": took[count * 99 // 100] / 1e3}


def echo(size: int, count: int) -> dict[str, float]:
    """Measures a message there and back between two Python processes, both blocking in the
    socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        ours.close()
        buffer = memoryview(bytearray(size))
        while (n := theirs.recv_into(buffer)) > 0:
            theirs.send(buffer[:n])
        os._exit(0)
    theirs.close()
    message, answer = bytes(size), memoryview(bytearray(size))

    def call() -> None:
        ours.send(message)
        ours.recv_into(answer)

    try:
        return percentiles(call, count)
    finally:
        ours.close()
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
