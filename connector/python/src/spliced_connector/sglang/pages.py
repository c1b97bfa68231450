"""Pages of SGLang's storage tier as checkpoints of the daemon. This module does not import SGLang.

SGLang names a page by a hash over all tokens up to its end and passes no token ids, so these
pages cannot have the names that prefixes have for other engines. It also stores keys and values
of every page, but recurrent states only where one of its tree nodes ends; the tree splits nodes
later, and pages are looked up one by one. So each page is a separate object, in one of two
profiles that follow from the model's identity:

    rows    the attention layers only; a page is a checkpoint of `page tokens` tokens
    states  the recurrent layers only; a page is a checkpoint without rows of all tokens before
            its end

No page extends another checkpoint. A chain of pages would be limited to 256 pages, could not branch
within a node, and would lose all later pages with its first page.

    name = SHA-256("spliced sglang page\\0" | fingerprint | u32 salt length | salt
                   | u32 page tokens (0 for states) | page hash as text)

The fingerprint includes weights, adapter, types and layer shapes, and each rank stores its own
share. So another model, layout or rank finds nothing.
"""

from __future__ import annotations

import hashlib
import logging
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from torch import Tensor

from spliced_connector.client import Accept, Checkpoint, Model, NewCheckpoint
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import NOTHING
from spliced_connector.sglang.pools import Pool
from spliced_connector.walk import part_bytes, tensor_over

log = logging.getLogger("spliced.sglang")

_AT_ONCE = 8
"""Number of pages that are copied from the pool before they are stored together. It bounds memory,
and the time that is lost if the daemon is gone (a guess)."""

_RESTORABLE = 8
"""Maximum number of prefixes with a state that one lookup finds. It begins with the longest."""


class PageTally:
    """Counts of one backend; any thread may add.

    hit_pages, missed_pages    lookups of keys and values
    hit_states, missed_states  lookups that found keys and values, by whether a state was found
    loaded_pages, saved_pages  pages of both kinds
    load_failures              pages that were missing, or not valid to the end
    save_failures              pages that the daemon refused; save_code_N: for reason N
    cut_lookups                lookups that ended by timeout
    unplaced                   states whose position in the prompt SGLang did not pass
    inert                      pools that are not used
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, n: int = 1) -> None:
        with self._lock:
            self._counts[name] += n

    def snapshot(self) -> dict[str, int]:
        """Returns all counts that are not 0."""
        with self._lock:
            return {name: n for name, n in self._counts.items() if n}


def page_name(fingerprint: bytes, salt: bytes, page_tokens: int, key: str) -> bytes:
    """Returns the hash under which a page is stored."""
    sha = hashlib.sha256(b"spliced sglang page\0" + fingerprint)
    sha.update(struct.pack("<I", len(salt)) + salt + struct.pack("<I", page_tokens))
    sha.update(key.encode())
    return sha.digest()


class Pages:
    """The pages of one pool. May be used by several threads; failures of the daemon are not
    raised."""

    def __init__(
        self, model: Model, pool: Pool, tally: PageTally, shares: Callable[[], bool]
    ) -> None:
        """shares: returns whether pages may be stored and found now."""
        self.pool = pool
        self._shares = shares
        self._model = model
        self._tally = tally
        self._rows = pool.page_tokens
        self._layout = pool.profile.checkpoint_layout(pool.page_tokens)

    def names(self, keys: Sequence[str]) -> list[bytes]:
        """Returns the pages' names; no names if no daemon was attached yet, or if nothing may be
        shared."""
        salt = self._model.salt
        if salt is None or not self._shares():
            return []
        fingerprint = self.pool.profile.fingerprint
        return [page_name(fingerprint, salt, self._rows, key) for key in keys]

    def leading(self, keys: Sequence[str], until: float) -> int:
        """Returns how many consecutive pages of keys and values are stored, from the first one.

        `until` is the deadline, by the monotonic clock.
        """
        found = 0
        for name in self.names(keys):
            if time.monotonic() >= until:
                self._tally.add("cut_lookups")
                break
            if self._model.match([self._rows], [name]).prefix_tokens != self._rows:
                break
            found += 1
        self._tally.add("hit_pages", found)
        self._tally.add("missed_pages", len(keys) - found)
        return found

    def ends(self, keys: Sequence[str], positions: Sequence[int], until: float) -> list[int]:
        """Returns the numbers of leading pages after which a state is stored, ascending.

        `positions`: the number of tokens up to each page's end. `until`: as in `leading`.
        """
        found: list[int] = []
        names = self.names(keys)
        n = len(names)
        while n > 0 and len(found) < _RESTORABLE and time.monotonic() < until:
            index = self._model.match(positions[:n], names[:n]).prefix_index
            if index < 0:
                break
            found.append(index + 1)
            n = index
        return found[::-1]

    def save(self, keys: Sequence[str], ends: Sequence[int], indices: Sequence[int]) -> list[bool]:
        """Stores pages. Page i begins at slot indices[i] of the pool, and ends after the first
        ends[i] tokens of the prompt. Returns for each page whether it is stored."""
        pool = self.pool

        def parts(i: int) -> list[memoryview]:
            return part_bytes(self._layout, pool.page(indices[i]))

        return self.save_parts(keys, ends, parts)

    def save_parts(
        self, keys: Sequence[str], ends: Sequence[int], parts: Callable[[int], list[memoryview]]
    ) -> list[bool]:
        """Stores pages as `save` does; `parts(i)` returns the parts of page i."""
        done: list[bool] = []
        names = self.names(keys)
        for at in range(0, len(names), _AT_ONCE):
            new = [
                NewCheckpoint(names[i], ends[i], NOTHING, 0, Accept.EXACT, parts(i))
                for i in range(at, min(at + _AT_ONCE, len(names)))
            ]
            codes = self._model.save(new)
            done += [code in (Code.OK, Code.EXISTS) for code in codes]
            for code in codes:
                if code not in (Code.OK, Code.EXISTS):
                    self._tally.add(f"save_code_{int(code)}")
            if not done[-1]:
                break
        done += [False] * (len(keys) - len(done))
        self._tally.add("saved_pages", done.count(True))
        self._tally.add("save_failures", done.count(False))
        return done

    def load(
        self, keys: Sequence[str], targets: Callable[[int], Sequence[Tensor]], until: float
    ) -> list[bool]:
        """Fills pages in order up to the first miss. `targets` returns the tensors of page i.

        Returns for each page whether it was filled. The content of other pages must not be used.
        """
        done: list[bool] = []
        for i, name in enumerate(self.names(keys)):
            wait = max(until - time.monotonic(), 0.001)
            checkpoint = self._model.load(name, wait=wait)
            if checkpoint is None or not self._copy(checkpoint, targets(i)):
                break
            done.append(True)
        if done and not self._shares():
            done = []
        self._tally.add("loaded_pages", len(done))
        self._tally.add("load_failures", len(keys) - len(done))
        return done + [False] * (len(keys) - len(done))

    def _copy(self, checkpoint: Checkpoint, targets: Sequence[Tensor]) -> bool:
        """Copies a page and releases its lease. Returns whether it was copied and was valid."""
        fits = checkpoint.layouts == (self._layout,)
        try:
            if fits:
                for i, (part, target) in enumerate(zip(self._layout.parts, targets, strict=True)):
                    target.copy_(tensor_over(checkpoint.part(0, i), part.dtype, part.shape))
        except SplicedError:
            fits = False
        finally:
            good = checkpoint.release()
        return fits and good
