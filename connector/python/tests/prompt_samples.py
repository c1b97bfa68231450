"""Prompts of every length and with every kind of cuts, as clients may send them."""

from __future__ import annotations

import random
from collections.abc import Iterator

BLOCK = 128
SEAMS = (0, 1, 8, 100, 112, 400, 4096)
LENGTHS = (*range(6), 7, 8, 9, 10, 16, 17, *(n + d for n in (BLOCK, 4 * BLOCK) for d in (-1, 0, 1)))


def prompts(seed: int, n: int) -> Iterator[tuple[list[int], dict[str, object] | None]]:
    """Yields token ids and the parameters of the request. Some begin as others do."""
    rng = random.Random(seed)
    stem = [rng.randrange(100, 10_000) for _ in range(2000)]
    for i in range(n):
        length = LENGTHS[i] if i < len(LENGTHS) else rng.randrange(1, 2000)
        shared = rng.randrange(length + 1)
        ids = stem[:shared] + [rng.randrange(100, 10_000) for _ in range(length - shared)]
        most = min(length, rng.choice((2, 3, 10, 300)))
        cuts = sorted(rng.sample(range(length), most)) if length > 1 else []
        if i % 5 == 0 or len(cuts) < 2:
            yield ids, None
        else:
            yield ids, {"spliced": {"v": 1, "cuts": cuts, "w": rng.choice(SEAMS)}}


def between_short_texts() -> tuple[list[int], dict[str, object]]:
    """Two long documents between 150 texts that are no longer than their seams."""
    sizes = [5] * 75 + [400] + [5] * 75 + [400]
    cuts = [20 + sum(sizes[:i]) for i in range(len(sizes) + 1)]
    rng = random.Random(9)
    ids = [rng.randrange(100, 10_000) for _ in range(cuts[-1] + 10)]
    return ids, {"spliced": {"v": 1, "cuts": cuts, "w": 8}}
