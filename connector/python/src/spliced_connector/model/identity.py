"""Everything that defines the values of a model's cached state.

It mirrors Go's `policy/profile`. An `Identity` lists which layers keep which tensors. Its canonical
bytes (`canonical.py`) are hashed into the fingerprint. The numbers of the enums are part of these
bytes and of the protocol. `family.py` has the families of linear attention.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import IntEnum

from spliced_connector.model.family import Family


class Kind(IntEnum):
    """What one decoder layer stores for past tokens."""

    NONE = 0  # an MLP only
    FULL = 1  # softmax attention over all earlier tokens
    MLA = 2  # one latent row and one rope key row per token
    WINDOW = 3  # softmax attention over the last `window` tokens
    LINEAR = 4  # a recurrent state, no rows
    CONV = 5  # a short convolution alone, which only keeps its tail

    @property
    def attends(self) -> bool:
        """Returns whether a layer of this kind stores rows of keys and values."""
        return self in (Kind.FULL, Kind.MLA, Kind.WINDOW)


class DType(IntEnum):
    """An element type of stored tensors."""

    NONE = 0  # for a convolution that a layer does not have
    F32 = 1
    F16 = 2
    BF16 = 3

    @property
    def size(self) -> int:
        """Bytes of one element, 0 for NONE."""
        return (0, 4, 2, 2)[self]


class KeyMode(IntEnum):
    """The position to which stored keys are rotated."""

    AT_ZERO = 1  # position in the segment; a rotation by the segment's start moves the key
    UNROTATED = 2


class Role(IntEnum):
    """Where in a prompt a segment may be used."""

    FIRST = 1  # at the start: stored whole, never recomputed
    MID = 2  # anywhere else: the interior is stored, its ends are recomputed at the seams


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding; the default is none."""

    dims: int = 0  # leading dimensions of a head that are rotated
    theta: float = 0.0  # frequency i is theta ** (-2 i / dims); 0 with inv_freq
    interleaved: bool = False  # pairs (2i, 2i+1); else (i, i + dims/2)
    inv_freq: tuple[float, ...] = ()  # for scaled rope, dims/2 numbers; () = computed from theta

    @property
    def frequencies(self) -> tuple[float, ...]:
        """Returns the angle per position of each rotated pair: dims/2 numbers, () without rope."""
        if self.inv_freq:
            return self.inv_freq
        return _geometric(self.theta, self.dims)


@functools.cache
def _geometric(theta: float, dims: int) -> tuple[float, ...]:
    return tuple(theta ** (-2 * i / dims) for i in range(dims // 2))


@dataclass(frozen=True, slots=True)
class Attention:
    """The rows that a full, window or MLA layer keeps per token. The default value means no rows.

    MLA has kv_heads 1, key_dim the size of the rope key, value_dim the rank of the latent.
    """

    kv_heads: int = 0  # over all ranks
    key_dim: int = 0
    value_dim: int = 0
    dtype: DType = DType.NONE
    keys: KeyMode = KeyMode.AT_ZERO
    rope: Rope = Rope()
    window: int = 0  # tokens, Kind.WINDOW only


@dataclass(frozen=True, slots=True)
class Conv:
    """The causal convolution before a linear layer. The default value means no convolution.

    Its tail is the last kernel-1 inputs, [kernel-1, sum(channels)].
    """

    kernel: int = 0
    channels: tuple[int, ...] = ()  # per group, such as q, k, v; ranks split each group
    dtype: DType = DType.NONE

    @property
    def rows(self) -> int:
        """Returns how many earlier inputs the convolution reads."""
        return max(0, self.kernel - 1)


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear-attention layer. The default value means no such layer.

    S has the shape [value_heads, key_dim, value_dim]. The shape of T depends on the family's
    transition; T acts on S from the left.
    """

    family: Family = Family.NONE
    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    state_dtype: DType = DType.NONE  # S of segments; running states are always F32
    transition_dtype: DType = DType.NONE  # scalar T is always F32
    conv: Conv = Conv()
    rope: Rope = Rope()  # inside the layer; only for families with scalar transitions
    slopes: tuple[float, ...] = ()  # exponents of a fixed decay, one per value head


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. Fields that its kind does not use are ignored."""

    kind: Kind = Kind.NONE
    attention: Attention = Attention()
    linear: Linear = Linear()  # for LINEAR; CONV uses only its conv


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that defines the values of cached state.

    Two engines share segments exactly if their identities are equal.
    """

    model: str  # name, for people; hashed too
    weights: bytes  # `config_digest.identity_digest`, 32 bytes; all zero = unknown = refused
    layers: tuple[Layer, ...]
    adapter: str = ""  # LoRA name and digest
    tokenizer: str = ""
    tp_size: int = 1  # tensor-parallel ranks
    tolerance: float = 0.0
    """Maximum error of a segment's stored T and S, which allows the daemon to pack them into fewer
    bytes. The error of T is the spectral norm of a head's difference. The error of S is the
    Frobenius norm of a head's difference, divided by the Frobenius norm of S. 0: T and S are stored
    unchanged. Checkpoints and leading segments are always stored unchanged."""
    row_tolerance: float = 0.0
    """Maximum error of a segment's stored keys and values. The error of a layer's keys (or values)
    is the Frobenius norm of their difference, divided by their Frobenius norm. 0: they are stored
    unchanged."""

    @property
    def most_error(self) -> float:
        """Returns the maximum difference of any part of a stored segment from the original."""
        return max(self.tolerance, self.row_tolerance)


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """The geometry of a segment, in tokens, and the primer after which it was captured."""

    role: Role
    head: int  # tokens not stored at the start, 0 for FIRST
    tail: int  # tokens not stored at the end, 0 for FIRST
    tokens: int  # length of the whole segment, without the primer
    primer: bytes = b""
    """`keys.primer_digest` of the primer's tokens, 32 bytes; empty for FIRST, and for segments
    captured from an empty state."""

    @property
    def interior(self) -> tuple[int, int]:
        """Returns the part that is stored: its first token and its number of tokens."""
        return self.head, self.tokens - self.head - self.tail


MAX_LAYERS = 4096
MAX_HEADS = 1 << 16
MAX_DIM = 1 << 16
MAX_TP_SIZE = 1024
MAX_TOKENS = 1 << 24
MAX_CANONICAL_BYTES = 96 << 10
MAX_TOLERANCE = 0.05
"""With an error above a twentieth the state no longer describes the same text."""
DEFAULT_TOLERANCE = 0.02
"""The default of engines: T and S in a quarter of the bytes. For the trained models it changes
one or two first tokens in 1,000 compared with a splice of unrounded T and S, and no score
(docs/fidelity.md)."""
