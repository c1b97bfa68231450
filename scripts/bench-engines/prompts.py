"""MuSiQue requests: ten passages each, drawn by Zipf's law, and a query."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

VOCABULARY = 4096
SYSTEM_TOKENS = 64
PASSAGES = 10


@dataclass(frozen=True)
class Corpus:
    """Lengths of passages by number, and for each request its passages and the query's length."""

    lengths: dict[int, int]
    draws: list[tuple[tuple[int, ...], int]]
    source: str


@dataclass(frozen=True)
class Request:
    """Token ids, and the ends of segments; the query follows the last cut."""

    ids: list[int]
    cuts: list[int]


def read_corpus(count: int) -> Corpus:
    """Returns the first requests of the data set, or synthetic requests of the same shape if the
    data set is missing."""
    directory = Path(os.environ.get("SPLICED_DATA", ROOT.parent / "shared" / "data"))
    try:
        lengths = dict(_rows(directory / "rag_musique_lens.csv.zst"))
        draws = [(row[:-1], row[-1]) for row in _rows(directory / "rag_musique_zipf1.csv.zst")]
        return Corpus({int(k): int(v) for k, v in lengths.items()}, draws[:count], "rag_musique")
    except OSError:
        return _synthetic(count)


def _rows(path: Path) -> list[tuple[int, ...]]:
    zstd = shutil.which("zstd")
    if zstd is None or not path.exists():
        raise FileNotFoundError(path)
    text = subprocess.run([zstd, "-dc", path], capture_output=True, text=True, check=True).stdout
    return [tuple(map(int, line.split(","))) for line in text.splitlines() if line]


def _synthetic(count: int) -> Corpus:
    """Returns 1,255 passages of some 600 tokens. Each request draws different passages by Zipf's
    law with exponent 1."""
    rng = random.Random(1)
    lengths = {i: rng.randint(540, 660) for i in range(1255)}
    weights = [1 / (i + 1) for i in lengths]
    draws = []
    for _ in range(count):
        chosen: list[int] = []
        while len(chosen) < PASSAGES:
            (drawn,) = rng.choices(range(len(lengths)), weights)
            if drawn not in chosen:
                chosen.append(drawn)
        draws.append((tuple(chosen), rng.randint(10, 40)))
    return Corpus(lengths, draws, "synthetic")


def tokens(name: str, n: int) -> list[int]:
    """Returns the same ids for the same name, in every process."""
    rng = random.Random(name)
    return [rng.randrange(VOCABULARY) for _ in range(n)]


def request(corpus: Corpus, passages: Sequence[int], query: int, name: str) -> Request:
    """Returns a system prompt, passages and a query. name: determines the query's tokens."""
    ids = tokens("system", SYSTEM_TOKENS)
    cuts = [0, len(ids)]
    for passage in passages:
        ids += tokens(f"passage {passage}", corpus.lengths[passage])
        cuts.append(len(ids))
    return Request(ids + tokens(f"query {name}", query), cuts)


def fresh(corpus: Corpus, passages: Sequence[int], query: int, name: str) -> Request:
    """Returns a request of the same lengths with new passages."""
    ids = tokens("system", SYSTEM_TOKENS)
    cuts = [0, len(ids)]
    for passage in passages:
        ids += tokens(f"fresh {name} {passage}", corpus.lengths[passage])
        cuts.append(len(ids))
    return Request(ids + tokens(f"query {name}", query), cuts)
