"""Measures how many tokens are reused, with cuts made by hand and with cuts that the server finds
in the prompts of unchanged clients.

    bin/engines/bin/python scripts/segments/measure.py DATA --out docs/results/segments.json

DATA is a directory with the data sets, plain or as .zst; missing ones are skipped with a message.
The requests of each data set are played one after another against a daemon, once cut by hand
(`spliced_connector.cuts`, each passage a separate text) and once for each set of finders. Cutting, naming,
lookups and planning use the vLLM connector's code; only the model is a stub, whose segments are
some hundred bytes. Nothing is evicted. The tokenizer is Qwen3.5's.

A token counts as reused if it is in the prefix shared with an earlier prompt (the longest such
prefix, in whole blocks of 16 tokens), or after it in the interior of a segment that an earlier
request has stored.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "connector/python/src"), str(ROOT / "connector/python/tests")]

from engine.real_tokenizer import MISSING, real_tokenizer  # noqa: E402  (shared with the tests)
from running import Daemon  # noqa: E402
from traffic import MARK, TRAFFIC, Message, Traffic  # noqa: E402

from spliced_connector import cuts as hand_made  # noqa: E402
from spliced_connector.client import Client, Model, NewSegment, Options  # noqa: E402
from spliced_connector.model import (  # noqa: E402
    Choice,
    DType,
    Family,
    Identity,
    Kind,
    Layer,
    Linear,
    choose,
    divide,
)
from spliced_connector.segments import Finder  # noqa: E402
from spliced_connector.serving.finding import cuts_of, finder_of, held_in  # noqa: E402
from spliced_connector.vllm.settings import Settings  # noqa: E402

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from spliced_connector.vllm.session import Session

SEAM = 8
BLOCK = 16
HAND = "hand"
FINDERS = {
    "separators": ("separators", "template"),
    "template": ("template",),
    "chunks": ("template", "chunks"),
    "known": ("known", "template", "chunks"),
}


@dataclass
class Sums:
    """Sums of one way to cut, over a traffic. tokens, prefix, segments and reused count tokens."""

    prompts: int = 0
    tokens: int = 0
    prefix: int = 0
    segments: int = 0  # reused without a prefix
    reused: int = 0  # the prefix, and segments after it
    cuts: int = 0
    stored: int = 0  # segments that were new
    finding: float = 0.0  # seconds of this process, including its requests to the daemon
    daemon: float = 0.0  # seconds of the daemon for these requests


@dataclass
class Way:
    """One way to cut, with a separate model at the daemon, so that ways share nothing."""

    name: str
    finder: Finder | None  # None: by hand
    model: Model
    sums: Sums = field(default_factory=Sums)

    def play(self, ids: list[int], by_hand: list[int], prefix: int, daemon: Daemon) -> None:
        sums = self.sums
        cut = by_hand if self.finder is None else self._find(self.finder, ids, daemon)
        prompt = divide(self.model.profile, self.model.salt or b"", ids, cut, SEAM)
        match = self.model.match(keys=prompt.keys)
        if match.trouble:
            raise RuntimeError(f"{self.name}: {match.trouble}")
        hits = iter(match.hits)
        held = [piece.key is not None and next(hits) for piece in prompt.pieces]
        none = [False] * len(held)
        for piece, alone, behind in zip(
            prompt.pieces,
            choose(prompt, 0, held, none),
            choose(prompt, prefix, held, none),
            strict=True,
        ):
            if piece.spec is None:
                continue
            sums.segments += piece.spec.interior[1] if alone is Choice.HIT else 0
            sums.reused += piece.spec.interior[1] if behind is Choice.HIT else 0
        missing = {
            piece.key: NewSegment(
                piece.spec,
                ids[piece.start : piece.end],
                [
                    bytes(part.nbytes)
                    for part in self.model.profile.segment_layout(piece.spec).parts
                ],
            )
            for piece, hit in zip(prompt.pieces, held, strict=True)
            if not hit and piece.spec is not None and piece.key is not None
        }
        codes = self.model.publish(list(missing.values())) if missing else []
        if any(codes):
            raise RuntimeError(f"{self.name}: a segment was not stored, codes {set(codes)}")
        sums.prompts += 1
        sums.tokens += len(ids)
        sums.prefix += prefix
        sums.reused += prefix
        sums.cuts += len(cut)
        sums.stored += len(missing)

    def _find(self, finder: Finder, ids: list[int], daemon: Daemon) -> list[int]:
        session = cast("Session", SimpleNamespace(model=self.model, tally=_NoTally()))
        began, served = time.process_time(), cpu_seconds(daemon.pid)
        found = cuts_of(finder, None, ids, SEAM, partial(held_in, session.model, session.tally))
        self.sums.finding += time.process_time() - began
        self.sums.daemon += cpu_seconds(daemon.pid) - served
        return [] if found is None else list(found.cuts)


class _NoTally:
    def add(self, *_: object) -> None:
        """Discards the counts."""


class Prefixes:
    """Finds the longest prefix that a prompt shares with earlier prompts, in whole blocks and
    without the last token."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def take(self, ids: Sequence[int]) -> int:
        chain, longest = b"", 0
        for end in range(BLOCK, len(ids), BLOCK):
            block = b"".join(token.to_bytes(4, "little") for token in ids[end - BLOCK : end])
            chain = hashlib.sha256(chain + block).digest()
            if chain in self._seen:
                longest = end
            self._seen.add(chain)
        return longest


def cpu_seconds(pid: int) -> float:
    """Returns processor time of all threads of a process."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            spent += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue  # a thread that has ended
    return spent / 1e9


def stub(name: str) -> Identity:
    """Returns a model whose segments take almost no memory, whatever their length."""
    mixer = Linear(Family.MAMBA2, 1, 1, 8, 8, DType.F32, DType.F32)
    weights = hashlib.sha256(name.encode()).digest()
    return Identity("stub", weights, (Layer(Kind.LINEAR, linear=mixer),))


def finders(tokenizer: PreTrainedTokenizerFast, names: Sequence[str]) -> Finder:
    """Returns the finders of a server started with these settings."""
    settings = Settings(weights="", find=tuple(names), separators=(MARK,))
    return finder_of(settings, tokenizer)


def tokens_of(
    tokenizer: PreTrainedTokenizerFast, messages: list[Message]
) -> tuple[list[int], list[int]]:
    """Returns the prompt as a server sees it, and the cuts of a client that knows its texts."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False), hand_made(messages, tokenizer)


def play(traffic: Traffic, data: Path, client: Client, daemon: Daemon) -> list[Way]:
    tokenizer = real_tokenizer()
    ways = []
    for name in (HAND, *traffic.ways):
        identity = stub(f"{traffic.name}|{traffic.about}|{name}")
        model = client.model(identity, block_tokens=BLOCK, connector="measure", engine="none")
        model.wait_attached(10)
        finder = None if name == HAND else finders(tokenizer, FINDERS[name])
        ways.append(Way(name, finder, model))
    prefixes = Prefixes()
    for messages in traffic.prompts(data):
        ids, by_hand = tokens_of(tokenizer, messages)
        prefix = prefixes.take(ids)
        for way in ways:
            way.play(ids, by_hand, prefix, daemon)
    return ways


def row(traffic: Traffic, ways: Sequence[Way]) -> dict[str, object]:
    hand = ways[0].sums
    return {
        "traffic": traffic.name,
        "about": traffic.about,
        "marked": traffic.marked,
        "ways": {way.name: _shares(way.sums, hand) for way in ways},
    }


def _shares(sums: Sums, hand: Sums) -> dict[str, object]:
    behind, of = sums.reused - sums.prefix, hand.reused - hand.prefix
    return asdict(sums) | {
        "of hand-made": sums.segments / hand.segments if hand.segments else None,
        "of hand-made, behind the prefix": behind / of if of else None,
    }


def describe() -> dict[str, object]:
    """Returns the versions and sizes to which the figures apply."""
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit.stdout.strip() or "unknown",
        "machine": platform.machine(),
        "seam": SEAM,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, help="results; traffic that it has is not played again")
    parser.add_argument("--only", help="traffic whose name contains this")
    options = parser.parse_args()
    if MISSING:
        print(f"skipped: {MISSING}")
        return
    out: Path | None = options.out
    results = json.loads(out.read_text())["traffic"] if out and out.exists() else []
    done = {(result["traffic"], result["about"]) for result in results}
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(Path(directory), "-arena=1GiB", "-staging=64MiB")
        daemon.start()
        client = Client(Options(daemon.socket, name="measure", timeout=60, transfer_timeout=60))
        try:
            for traffic in TRAFFIC:
                if (traffic.name, traffic.about) in done or (
                    options.only or ""
                ) not in traffic.name:
                    continue
                try:
                    ways = play(traffic, options.data, client, daemon)
                except OSError as err:
                    print(f"skipped: {traffic.name}, {traffic.about}: {err}")
                    continue
                results.append(row(traffic, ways))
                show(results[-1])
                if out:
                    out.write_text(json.dumps(describe() | {"traffic": results}, indent=1) + "\n")
        finally:
            client.close()
            daemon.stop()


def show(result: dict[str, object]) -> None:
    print(f"{result['traffic']}: {result['about']}")
    for name, w in cast("dict[str, dict[str, float]]", result["ways"]).items():
        ratios = [w["of hand-made"], w["of hand-made, behind the prefix"]]
        shown = " ".join("      -" if r is None else f"{r:7.1%}" for r in ratios)
        n = w["tokens"]
        print(
            f"  {name:<11} {w['prompts']:>5} prompts {n / w['prompts']:>7.0f} tokens"
            f"  prefix {w['prefix'] / n:6.1%}  reused {w['reused'] / n:6.1%}  of hand-made {shown}"
            f"  {w['stored']:>6} stored"
            f"  {w['finding'] / n * 1e6:.2f} us a token, daemon {w['daemon'] / n * 1e6:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
