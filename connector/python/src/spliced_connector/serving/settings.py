"""The settings of an adapter, read and checked before the serving engine starts.

If a setting is unknown, has another type or is out of range, the engine does not start, and the
error names all such settings. So a typing error cannot look like "no hits".
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
    """Keys, values and recurrent states of exactly the same leading tokens."""
    SPLICE = "splice"
    """Segments after any prefix, at the cuts of a request."""


class Compute(StrEnum):
    """Who composes the states of segments and places their rows."""

    AUTO = "auto"
    """Whichever was measured to be faster."""
    DAEMON = "daemon"
    """The daemon's kernels, or the engine if the daemon cannot."""
    ENGINE = "engine"
    """The engine's process."""


Names = tuple[str, ...]
Marks = tuple[str | tuple[int, ...], ...]
Passage = str | tuple[int, ...]


@dataclass(frozen=True)
class ServingSettings:
    """Settings of one engine; the same for all its processes."""

    weights: str
    """The model's weights: their digest as 64 hexadecimal digits, or the directory of the
    safetensors files, which are read at every start. Engines with other weights share nothing."""
    weights_cache: str = ""
    """Directory that stores the digests of weights files. Empty: files are read at every start."""
    mode: Mode = Mode.PREFIX
    socket: str = ""
    """Path of the daemon's socket. Empty: the path where a daemon listens by default."""
    daemon_uid: int = -1
    """User id that the daemon runs as. -1: $SPLICED_DAEMON_UID; if that is not set, the owners and
    modes of the socket's directories decide which user is trusted."""
    tenant: str = ""
    """Tenant whose objects and quota are used. Empty: the default tenant."""
    token: str = ""
    """The tenant's token."""
    timeout_ms: float = 50.0
    """Timeout of one answer of the daemon in ms, while the engine waits; 0.1 to 10,000."""
    load_ms: float = 1000.0
    """Longest wait for objects on disk: for all checkpoints of one step of the engine together, or
    for the segments of one request; 0.1 to 60,000."""
    max_checkpoints: int = 0
    """Maximum number of checkpoints stored of one prompt, up to 1,024; 0: the daemon's setting."""
    pending_mib: int = 1024
    """Host memory of each rank for checkpoints that were copied out of the engine and are not
    stored yet, and as much again for captured segments. When it is full, further objects are
    dropped; 1 to 1,048,576."""
    seam_tokens: int = 8
    """Tokens on each side of a join that are recomputed, mode splice; 0 to 4,096."""
    stall_ms: float = 250.0
    """Time that captures and walks over recomputed rows may take in one step of the engine while
    other requests run, mode splice. Remaining work continues in later steps. One piece of work
    always runs in a step: a run of rows is cut to the time, but a captured segment is one piece and
    may take longer."""
    capture: bool = True
    """Whether missing segments are computed in isolation and published, mode splice."""
    capture_tokens: int = 2048
    """Segments of more tokens are not captured, because the engine stands still for a whole
    capture; 1 to 16,777,216. A good value is the number of tokens that the engine computes in a few
    times `stall_ms`."""
    find: Names = ()
    """The finders for prompts that name no cuts: any of "known" (mode splice), "separators",
    "template" and "chunks", which the package `segments` describes. Empty: no finder."""
    separators: Marks = ()
    """The separators between segments: strings that are a single added token of the vocabulary, or
    lists of token ids."""
    chunk_least: int = 64
    """Minimum tokens of a segment that ends at a template's boundary or with a paragraph."""
    chunk_mean: int = 256
    """Average tokens of a chunk, in parts longer than `chunk_most`."""
    chunk_most: int = 1024
    """Parts of more tokens are cut even where no paragraph ends. Also the longest chunk."""
    turns: bool = True
    """Whether the state after each prompt that has segments is stored, so that the next turn of a
    conversation continues from it, mode splice."""
    tolerance: float = DEFAULT_TOLERANCE
    """Largest relative error of a segment's stored transitions and states, which lets the daemon
    pack them into fewer bytes (about a quarter at 0.02); 0 to 0.05. 0: they are stored unchanged.
    Engines with different values share nothing, not even prefixes, which are never packed."""
    row_tolerance: float = 0.0
    """Largest relative error of a segment's stored keys and values, which lets the daemon pack them
    into a little more than half of their bytes (at 0.02); 0 to 0.05. 0: they are stored unchanged.
    In GPU memory they are always unpacked."""
    primer: Passage = ""
    """The primer, mode splice: "default", the absolute path of a text file, or a list of 1 to 4,096
    token ids. Empty: no primer. Engines share the segments that were captured after the same token
    ids."""
    primer_after: int = 128
    """Segments with fewer tokens before them in the prompt are captured without the primer; 1 to
    16,777,216."""
    refresh: float = 0.0
    """Share of the tokens of a prompt's segments that is computed in context, beginning with the
    last segment and rounded up to whole segments, mode splice; 0 to 1. It costs the prefill of
    these tokens and makes a splice more like a full prefill. Requests may set their own."""
    max_loss: float = ANY_LOSS
    """Highest accepted loss, mode splice; 0 to 1: the expected share of requests whose first token
    differs from that of a full prefill. Below 1 a request is spliced only in a way whose loss is
    known and not higher. Requests may set their own."""
    fidelity: str = ""
    """Path of a file that `python -m spliced_connector.fidelity --json` has written for the model,
    mode splice. Its losses are used until enough requests were compared. Empty: no file."""
    measured: bool = True
    """Whether cost estimates of the daemon, learned from engines' measurements, decide how much of
    a prompt is spliced, mode splice. False: a fixed guess decides."""
    compute: Compute = Compute.ENGINE
    """Who places cached segments, mode splice on a CPU: "engine" is the engine's process, "daemon"
    the daemon's kernels, "auto" whichever was faster over five walks."""
    canary_share: float = 0.01
    """Share of spliced requests that the canary recomputes in full and compares, mode splice; 0 to
    1. Requests with narrower seams than `seam_tokens`, or with tiny segments, are not taken."""
    canary_bound: float = 0.25
    """Largest error of the compared logits, relative to their spread, that a splice may have. With
    the trained model of scripts/tinyhybrid and 14 prompts, errors are 0.02 to 0.12 at a seam of 8,
    0.19 to 0.56 with states lost, and 0.38 to 0.96 with keys at wrong positions."""
    canary_changed: float = 0.1
    """Splicing is switched off if the first token differs in a larger share of compared requests;
    up to 0.9, 0: never. At 0.1, this is noticed within 765 comparisons in 95 of 100 cases."""

    WHERE: ClassVar[str] = "settings"
    """Where an operator has written the settings; used in errors."""
    CHOICES: ClassVar[Mapping[str, type[StrEnum]]] = {"Mode": Mode, "Compute": Compute}
    """Enumerations that are types of fields, by name."""
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
        """Returns the settings from a mapping. Raises ValueError with everything that is wrong."""
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
        """Returns texts about missing or conflicting settings. values: of the right types."""
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
    """Returns the value as its field's type; an int is accepted for a float. Otherwise returns None
    and adds a text to `wrong`."""
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
