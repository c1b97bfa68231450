"""What an adapter of a serving engine may be told, read and checked before the engine starts.

A setting that is unknown, of another type or out of range ends the start with a text that names
all of them: a typing error must not read as "no hits".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import ClassVar, Self, TypeGuard, cast

from spliced_connector.client import ANY_LOSS
from spliced_connector.model import DEFAULT_TOLERANCE, MAX_TOLERANCE
from spliced_connector.segments import FINDERS


class Mode(StrEnum):
    """What the connector reuses."""

    PREFIX = "prefix"
    """Rows and recurrent states of exactly the same leading tokens."""
    SPLICE = "splice"
    """Segments behind any prefix, at the cuts that a request names."""


class Compute(StrEnum):
    """Where the states and rows of segments are put in place."""

    AUTO = "auto"
    """Where it was measured to be quicker."""
    DAEMON = "daemon"
    """By the daemon's kernels; in the engine where it cannot."""
    ENGINE = "engine"
    """In the engine's process."""


Names = tuple[str, ...]
Marks = tuple[str | tuple[int, ...], ...]
Passage = str | tuple[int, ...]


@dataclass(frozen=True)
class ServingSettings:
    """Settings of one engine; the same for all its processes."""

    weights: str
    """What the weights are: their digest as 64 hexadecimal digits, or the directory of the
    safetensors files, which is read at every start. Engines share nothing unless it is equal."""
    weights_cache: str = ""
    """Directory that remembers digests of weights files. Empty: they are read at every start."""
    mode: Mode = Mode.PREFIX
    socket: str = ""
    """Path of the daemon's socket. Empty: where a daemon listens by default."""
    daemon_uid: int = -1
    """User id that the daemon runs as. -1: $SPLICED_DAEMON_UID, else what the owners and modes of
    the socket's directories say."""
    tenant: str = ""
    """Tenant of the daemon whose objects are used and paid for. Empty: the default tenant."""
    token: str = ""
    """The tenant's token."""
    timeout_ms: float = 50.0
    """Longest wait for one answer of the daemon, while the engine stands still; 0.1 to 10,000."""
    load_ms: float = 1000.0
    """Longest wait for what has to come from disk: for all checkpoints of one step of the engine
    together, or for the segments of one request; 0.1 to 60,000."""
    max_checkpoints: int = 0
    """Checkpoints of one prompt that are stored at most; 0: as the daemon is set; up to 1,024."""
    pending_mib: int = 1024
    """Host memory of each rank for checkpoints, and as much again for captured segments, that were
    copied out of the engine and are not stored yet. When it is full, further ones are dropped; 1 to
    1,048,576."""
    seam_tokens: int = 8
    """Tokens on each side of a join that are computed again, mode splice; 0 to 4,096."""
    stall_ms: float = 250.0
    """Time within one step of the engine that captures and walks over recomputed rows may take
    while other requests run, mode splice. The rest continues in later steps. The first piece of
    a step always runs, and may take longer: a run of rows is cut to the time, a captured segment is
    one piece."""
    capture: bool = True
    """Whether segments that are missing are computed alone and published, mode splice."""
    capture_tokens: int = 2048
    """Segments of more tokens are not captured, because the engine stands still for the whole of
    one; 1 to 16,777,216. What an engine does in a few times `stall_ms` is a good value."""
    find: Names = ()
    """What finds segments in prompts that name none: any of "known" (mode splice), "separators",
    "template" and "chunks", as said in the package `segments`. Empty: nothing does."""
    separators: Marks = ()
    """What stands between segments: strings that are one token of the vocabulary's added ones, or
    lists of token ids."""
    chunk_least: int = 64
    """Shortest segment that a template's boundary or the end of a paragraph is worth."""
    chunk_mean: int = 256
    """Tokens of a chunk on average, in parts longer than `chunk_most`."""
    chunk_most: int = 1024
    """Longest part that stays whole where no paragraph ends, and longest chunk."""
    turns: bool = True
    """Whether the state behind each prompt that has segments is stored, so that a conversation's
    next turn continues there, mode splice."""
    tolerance: float = DEFAULT_TOLERANCE
    """How far the daemon may move transitions and states of segments, so that they take fewer
    bytes: about a quarter at 0.02; 0 to 0.05. 0: they are kept as they were written. Engines share
    nothing unless it is equal, prefixes included, which it does not change."""
    row_tolerance: float = 0.0
    """The same of keys and values of segments: a little more than half of their bytes at 0.02. 0:
    they are kept as they were written, as they are in memory of a GPU in any case."""
    primer: Passage = ""
    """What segments are captured after, mode splice: "default", the absolute path of a text file,
    or a list of token ids, 1 to 4,096 of them. Empty: nothing. Engines share the segments that were
    captured after the same token ids."""
    primer_after: int = 128
    """Segments with fewer tokens before them in the prompt are captured without the primer; 1 to
    16,777,216."""
    refresh: float = 0.0
    """Share of the tokens of a prompt's segments that is computed in context all the same, from the
    last segment on and rounded up to whole ones, mode splice, for requests that do not say; 0 to 1.
    It costs their prefill, and takes a splice nearer to a full prefill."""
    max_loss: float = ANY_LOSS
    """Expected share of requests with another first token than a full prefill that is accepted of
    splicing, mode splice, for requests that do not say; 0 to 1. Below 1 a request is only spliced
    in a way whose loss is known and within it."""
    fidelity: str = ""
    """Path of what `python -m spliced_connector.fidelity --json` has measured of the model: what
    losses are expected by before requests were compared, mode splice. Empty: nothing."""
    measured: bool = True
    """Whether the daemon's prices, learnt from what engines measured, decide how much of a prompt
    is taken over, mode splice. False: a fixed guess does."""
    compute: Compute = Compute.ENGINE
    """Where held segments are put in place, mode splice on a CPU: "engine" in the engine's process,
    "daemon" by the daemon's kernels, "auto" where five walks were quicker."""
    canary_share: float = 0.01
    """Share of spliced requests that are computed again in full and compared, mode splice; 0 to 1.
    Requests with narrower seams than `seam_tokens`, or with tiny segments, are not taken."""
    canary_bound: float = 0.25
    """Largest error of the compared logits, relative to their spread, that a splice may have. Of
    the trained model of scripts/tinyhybrid, 14 prompts: 0.02 to 0.12 at a seam of 8; 0.19 to 0.56
    with states lost, 0.38 to 0.96 with keys at wrong positions."""
    canary_changed: float = 0.1
    """Share of compared requests with another first token that switches splicing off; 0 for none,
    up to 0.9. It is noticed within 765 comparisons in 95 of 100 cases."""

    WHERE: ClassVar[str] = "settings"
    """Where an operator has written them."""
    CHOICES: ClassVar[Mapping[str, type[StrEnum]]] = {"Mode": Mode, "Compute": Compute}
    """Types of fields that are one of some words, by name."""
    RANGES: ClassVar[Mapping[str, tuple[float, float]]] = {
        "daemon_uid": (-1, 2**32 - 1),
        "timeout_ms": (0.1, 10_000),
        "load_ms": (0.1, 60_000),
        "max_checkpoints": (0, 1024),
        "pending_mib": (1, 1 << 20),
        "seam_tokens": (0, 4096),
        "stall_ms": (0, 60_000),
        "capture_tokens": (1, 1 << 24),
        "chunk_least": (16, 1 << 20),
        "chunk_mean": (16, 1 << 20),
        "chunk_most": (16, 1 << 20),
        "primer_after": (1, 1 << 24),
        "refresh": (0, 1),
        "max_loss": (0, ANY_LOSS),
        "tolerance": (0, MAX_TOLERANCE),
        "row_tolerance": (0, MAX_TOLERANCE),
        "canary_share": (0, 1),
        "canary_bound": (0, 1e9),
        "canary_changed": (0, 0.9),
    }

    @classmethod
    def read(cls, given: Mapping[str, object]) -> Self:
        """Raises ValueError with everything that is wrong."""
        wrong: list[str] = []
        known = {field.name: field for field in fields(cls)}
        values: dict[str, object] = {}
        for name, value in given.items():
            if name not in known:
                wrong.append(f"{name}: unknown, want one of {', '.join(known)}")
                continue
            kind = str(known[name].type)
            if (value := typed(name, value, kind, cls.CHOICES, wrong)) is not None:
                values[name] = value
        wrong += cls.conflicts(values)
        for name, (low, high) in cls.RANGES.items():
            value = values.get(name)
            if isinstance(value, int | float) and not low <= value <= high:
                wrong.append(f"{name}: {value}, want {low:g} to {high:g}")
        if wrong:
            raise ValueError(f"{cls.WHERE}: " + "; ".join(wrong))
        return cls(**values)  # type: ignore[arg-type]

    @classmethod
    def conflicts(cls, values: Mapping[str, object]) -> list[str]:
        """Missing or conflicting settings, for values of the right types."""
        wrong: list[str] = []
        if not values.get("weights"):
            wrong.append("weights: missing, want a digest of 64 hex digits or a directory")
        find = cast(Names, values.get("find", ()))
        if ("separators" in values) != ("separators" in find):
            wrong.append("separators: they and the finder of that name want each other")
        splices = values.get("mode") is Mode.SPLICE
        if "known" in find and not splices:
            wrong.append("find: 'known' is for mode splice")
        for name in ("primer", "fidelity"):
            if values.get(name) and not splices:
                wrong.append(f"{name}: it is for mode splice")
        return wrong


def typed(
    name: str,
    value: object,
    kind: str,
    choices: Mapping[str, type[StrEnum]],
    wrong: list[str],
) -> object | None:
    """The value if it has its field's type, an int counting as a float; else None, and `wrong` says
    so."""
    if choice := choices.get(kind):
        if value in list(choice):
            return choice(str(value))
        wrong.append(f"{name}: {value!r}, want {' or '.join(choice)}")
        return None
    if kind == "Names":
        if _is_list(value) and all(one in FINDERS for one in value):
            return tuple(str(one) for one in value)
        wrong.append(f"{name}: {value!r}, want a list of {', '.join(FINDERS)}")
        return None
    if kind == "Marks":
        if _is_list(value) and value and all(isinstance(one, str) or _ids(one) for one in value):
            return tuple(
                one if isinstance(one, str) else tuple(cast(list[int], one)) for one in value
            )
        wrong.append(f"{name}: {value!r}, want a list of strings and lists of token ids")
        return None
    if kind == "Passage":
        if isinstance(value, str) and (value in ("", "default") or value.startswith("/")):
            return value
        if _ids(value):
            return tuple(cast(list[int], value))
        wrong.append(f'{name}: {value!r}, want "default", an absolute path or a list of token ids')
        return None
    types: dict[str, type | tuple[type, ...]] = {
        "str": str,
        "bool": bool,
        "int": int,
        "float": (int, float),
    }
    fits = isinstance(value, types[kind]) and (kind == "bool") == isinstance(value, bool)
    if not fits:
        wrong.append(f"{name}: {value!r}, want {kind}")
        return None
    return float(str(value)) if kind == "float" else value


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _ids(value: object) -> bool:
    whole = _is_list(value) and all(type(one) is int and one >= 0 for one in value)
    return whole and bool(value)
