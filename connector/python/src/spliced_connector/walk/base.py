"""The properties of a model that a walk over its layers needs.

An Architecture is the arithmetic of one model as functions of rows, one row per token. It keeps no
cache, and the caller passes all positions. So the same object serves a prefill, a capture and the
recomputed rows of a splice. The caller keeps the state (`spliced_connector.walk.run`).

Shapes: n rows, H query heads, KV key-value heads, Hk key heads and Hv value heads of a linear
layer, dk and dv their dimensions, C convolution channels, k the convolution's kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from spliced_connector.model import Identity, Kind, SegmentSpec, Span

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """The projections of an attention layer.

    q [n, H, dk] and k [n, KV, dk] are rotated to the given positions; v is [n, KV, dv]. A latent
    (MLA) layer returns the absorbed form: k [n, 1, rope], v [n, 1, rank] and q [n, H, rank +
    rope]. The first `rank` columns of q are multiplied with the latent v, the others with k, and
    the attention's output is [n, H, rank]. `rest` contains values that the layer needs again
    after the attention, such as an output gate.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    rest: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class LinearRows:
    """The projections of a linear layer before the convolution.

    conv [n, C] is the convolution's input, None in a layer without a convolution.
    """

    conv: Tensor | None
    rest: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Steps:
    """The inputs of a linear layer's recurrence, one step per row.

    q and k [n, Hk, dk] are already normalised, rotated and scaled; v is [n, Hv, dv], and Hv is a
    multiple of Hk. decay is the logarithm of the step's decay in float32, [n, Hv] or [n, Hv, dk].
    A step adds k v^T to the state S (plain). With beta [n, Hv] it corrects the content of S (the
    delta rule). With erase [n, Hv, dk] instead of beta, the delta rule has gates per channel
    (Gated DeltaNet-2): erase reads S, and v is the written value. skip [n, Hv, dv] is added to
    the output and does not affect S.

        plain   S = exp(decay) * S + k v^T
        delta   S = exp(decay) * S;  S = S + beta * k (v - k^T S)^T
        erase   S = exp(decay) * S;  S = S + k (v - erase^T S)^T
        output  o = q^T S + skip
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor | None = None
    skip: Tensor | None = None
    erase: Tensor | None = None

    @property
    def delta(self) -> bool:
        """Whether a step reads the state before it writes, so that T is dense."""
        return self.beta is not None or self.erase is not None


@dataclass(frozen=True, slots=True)
class Sight:
    """Rows [lo, hi) of a walk see the keys [begin, end). The last row sees all these keys, and
    each row sees one key more than the row before it."""

    lo: int
    hi: int
    begin: int
    end: int

    @property
    def position(self) -> int:
        """Returns the position of the key of the first row."""
        return self.end - (self.hi - self.lo)


@dataclass(frozen=True, slots=True)
class SegmentLayer:
    """One layer of a segment in its stored form. A part is None if the layer has no such part.

    All parts cover only the interior: the m tokens of the segment without its seams. transition
    [Hv], [Hv, dk] or [Hv, dk, dk] is T, state [Hv, dk, dv] is S, and conv [k-1, C] has the last
    convolution inputs. k [m, KV, dk] and v [m, KV, dv] have one row per token; keys are rotated
    to their positions in the whole segment.
    """

    transition: Tensor | None = None
    state: Tensor | None = None
    conv: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Captured:
    """A segment as tensors: the result of one isolated pass over its tokens, or views of the leased
    memory that contains such a result."""

    spec: SegmentSpec
    layers: tuple[SegmentLayer, ...]


class Placer(Protocol):
    """Places some segments in place of the walk, such as segments in the memory of the model's
    device: writes their keys and values into the context, and composes their states.

    The walk itself reads only the convolution inputs of such a segment, and its keys and values if
    attention reads them in place. The segment's `Captured` needs no other parts.
    """

    def holds(self, segment: int) -> bool:
        """Whether this placer places the segment."""
        ...

    def rows(
        self, spans: Sequence[Span], into: Sequence[tuple[Tensor | None, Tensor | None]]
    ) -> None:
        """Writes the keys and values of those spans that are segments of this placer. Keys are
        rotated to their positions in the prompt.

        into: for each layer the keys and the values of the whole prompt, [room, KV, d] each; both
        are None in a layer without attention.
        """
        ...

    def compose(
        self,
        layer: int,
        spans: Sequence[Span],
        computed: tuple[Tensor, Tensor] | None,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Composes a state with consecutive spans. A span is a segment of this placer, or one of n
        spans whose rows the walk has computed.

        computed has T [n, ...] and S [n, Hv, dk, dv] of the computed spans; None: n is 0. Returns
        the state after all spans, and the states before each computed span, [n, Hv, dk, dv]. May
        overwrite `state`.
        """
        ...


class Batch(Protocol):
    """How the rows of one walk are grouped: into sequences that follow one another."""

    @property
    def lengths(self) -> Sequence[int]:
        """Number of rows of each sequence."""
        ...

    @property
    def parts(self) -> Sequence[int]:
        """Number of rows of each run. A run is a sequence or a part of one; the recurrence is
        advanced by one run at a time."""
        ...

    @property
    def sights(self) -> Sequence[Sight]:
        """The keys that the rows of each sequence attend to."""
        ...

    def once(self, key: object, make: Callable[[], T]) -> T:
        """Returns the result of `make`, computed once for all layers."""
        ...


class Recurrence(Protocol):
    """The recurrence of one layer over the parts of a batch; see `families.Scan`."""

    def advance(self, run: int, state: Tensor) -> Tensor:
        """Returns the state [Hv, dk, dv] after a run, and records what the run's outputs need.
        May overwrite the given state."""
        ...

    def transition(self, run: int) -> Tensor:
        """Returns T of a run's rows."""
        ...

    def outputs(self) -> Tensor:
        """Returns the outputs of all rows, [n, Hv, dv]. Call it after `advance` of every run."""
        ...


class Kernels(Protocol):
    """Operations between the projections of a mixer, for engines with faster kernels than torch's.

    Results equal the results of torch's operations, but are rounded as the engine rounds.
    """

    def convolve(self, layer: int, inputs: Tensor, lefts: Tensor, batch: Batch) -> Tensor:
        """Returns the convolution's outputs after SiLU, [n, C]. inputs is [n, C]; lefts
        [sequences, k-1, C] has the inputs before each sequence."""
        ...

    def recurrence(
        self, layer: int, conv_out: Tensor, rows: LinearRows, batch: Batch
    ) -> Recurrence:
        """Returns the recurrence of all rows. conv_out is the result of `convolve`, rows the
        result of `Architecture.linear`."""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """Returns the softmax attention [n, H, dv] of q [n, H, dk] over k [N, KV, dk] and v [N,
        KV, dv]."""
        ...


class Architecture(Protocol):
    """Arithmetic of one model. Positions are int64 [n]; hidden rows h are [n, any width].

    Every method is a pure function of its arguments and the weights. A row's result does not
    depend on other rows, unless the method's description says otherwise.
    """

    @property
    def identity(self) -> Identity:
        """Describes the reusable state. `identity.layers` has one entry for each entry of
        `layers`."""
        ...

    @property
    def layers(self) -> tuple[Kind, ...]:
        """The kind of every layer. A decoder layer with two mixers may be two layers here."""
        ...

    @property
    def slots(self) -> tuple[int, ...]:
        """For each layer, the number of the layer of the engine's own cache with its state."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Element type of hidden rows, keys and values."""
        ...

    @property
    def kernels(self) -> Kernels | None:
        """The kernels used for all layers; None: torch's operations."""
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """Returns the hidden rows of token ids, int64 [n]."""
        ...

    def logits(self, h: Tensor) -> Tensor:
        """Applies final norm and head: [n, vocabulary]."""
        ...

    def norm(self, layer: int, h: Tensor) -> Tensor:
        """Returns the mixer's input."""
        ...

    def attention(self, layer: int, x: Tensor, positions: Tensor) -> AttentionRows:
        """Returns queries, keys and values."""
        ...

    def scale(self, layer: int) -> float:
        """The factor on q k^T."""
        ...

    def attention_out(self, layer: int, o: Tensor, rows: AttentionRows) -> Tensor:
        """Returns the mixer's result from the attention's rows o [n, H, dv]."""
        ...

    def linear(self, layer: int, x: Tensor, positions: Tensor) -> LinearRows:
        """Returns the projections before the convolution."""
        ...

    def conv_weight(self, layer: int) -> tuple[Tensor, Tensor | None] | None:
        """Returns the convolution's taps [C, k] and its bias [C], or None for the bias if there is
        none. Returns None in a layer without a convolution. The last tap multiplies the row itself.
        SiLU is applied to the result."""
        ...

    def steps(
        self, layer: int, conv_out: Tensor | None, rows: LinearRows, positions: Tensor
    ) -> Steps:
        """Returns the recurrence's inputs from the convolution's output [n, C] after SiLU."""
        ...

    def linear_out(self, layer: int, o: Tensor, rows: LinearRows) -> Tensor:
        """Returns the mixer's result from the recurrence's output o [n, Hv, dv]."""
        ...

    def mix(self, layer: int, h: Tensor, y: Tensor) -> Tensor:
        """Returns the layer's hidden rows from its input and the mixer's result: residuals and
        MLP.

        A layer of kind NONE has no mixer: y is the result of `norm`.
        """
        ...
