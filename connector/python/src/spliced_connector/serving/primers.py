"""The primer of an engine: a neutral passage after which it captures segments.

A segment that is captured from an empty state is encoded like the first passage of a prompt. If it
is captured after some hundred tokens of neutral text, it is closer to its encoding in the middle of
a prompt. Requests that reuse the segment do no extra work.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from spliced_connector.model import Identity, Lead, SegmentSpec, primer_digest
from spliced_connector.segments import Tokenizer
from spliced_connector.serving.settings import Passage

if TYPE_CHECKING:
    import torch

    from spliced_connector.walk import Architecture, Primer

DEFAULT = "default"

MAX_PRIMER = 4096
"""Maximum tokens of a primer, because each capture attends to all of them."""


def primer_ids(
    passage: Passage, tokenizer: Tokenizer | None, identity: Identity, vocabulary: int
) -> tuple[int, ...]:
    """Returns the token ids of the passage that settings name, without special tokens.

    tokenizer: the model's; not needed if the settings have token ids. vocabulary: the model has
    embeddings for ids below this number. Raises ValueError for a model that cannot have a primer, a
    file that cannot be read, a text without a tokenizer, an id without an embedding, and more than
    MAX_PRIMER tokens.
    """
    if not passage:
        return ()
    from spliced_connector.walk import primer_problem  # needs torch, unlike naming a primer

    if why := primer_problem(identity):
        raise ValueError(f"primer: not with this model: {why}")
    ids = passage if isinstance(passage, tuple) else _tokens(passage, tokenizer)
    if not 1 <= len(ids) <= MAX_PRIMER:
        raise ValueError(f"primer: {len(ids)} tokens, want 1 to {MAX_PRIMER}")
    if max(ids) >= vocabulary:
        raise ValueError(f"primer: token {max(ids)}, the model has {vocabulary}")
    return ids


def _tokens(passage: str, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    if tokenizer is None:
        raise ValueError("primer: the engine has no tokenizer, give token ids")
    if passage == DEFAULT:
        text = files(__package__).joinpath("primer.txt").read_text("utf-8")
    else:
        try:
            text = Path(passage).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as err:
            raise ValueError(f"primer: {err}") from err
    return tuple(tokenizer.encode(text, add_special_tokens=False))


class Primers:
    """The primers of one process: one or none. The states of a primer are computed before the first
    capture that needs them, then cached."""

    def __init__(self, arch: Architecture, device: torch.device, ids: tuple[int, ...] = ()) -> None:
        """device: the device of the model. ids: token ids of the primer, empty for no primer."""
        self._arch, self._device, self._ids = arch, device, ids
        self._digest = primer_digest(ids) if ids else b""
        self._made: Primer | None = None

    @property
    def digests(self) -> tuple[bytes, ...]:
        """Returns the digests of the primers."""
        return (self._digest,) if self._digest else ()

    def knows(self, spec: SegmentSpec) -> bool:
        """Returns whether segments of the spec can be captured here."""
        return spec.primer in (b"", self._digest)

    def made(self, spec: SegmentSpec) -> bool:
        """Returns whether a capture of the spec can begin at once: it needs no primer, or the
        primer is computed already."""
        return not spec.primer or (self._made is not None and self.knows(spec))

    def keys(self, spec: SegmentSpec) -> int:
        """Returns how many keys a capture of the spec attends to, including those of the primer."""
        return spec.tokens + (len(self._ids) if spec.primer else 0)

    def of(self, spec: SegmentSpec) -> Primer | None:
        """Returns the primer of a spec, None for a spec without. Raises ValueError for another
        primer."""
        if not spec.primer:
            return None
        if spec.primer != self._digest:
            raise ValueError(f"primer {spec.primer.hex()[:16]} is not the engine's")
        if self._made is None:
            from spliced_connector.walk import make_primer

            self._made = make_primer(self._arch, self._ids, self._device)
        return self._made


def lead_of(ids: tuple[int, ...], begin: int) -> Lead | None:
    """Returns the primer's `Lead`, for segments from token `begin` on; None without a primer."""
    return Lead(primer_digest(ids), begin) if ids else None
