"""A primer: a short neutral passage after which segments are captured.

A segment captured from an empty state is encoded as the first passage of a prompt. After a primer
it is encoded as a later passage. The primer is computed once per model and process, and moved to
the positions before zero. A segment captured after it still begins at position 0. So its keys are
stored at the same positions as without a primer, and T and S still act on any state before its
interior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spliced_connector.model import (
    Identity,
    KeyMode,
    Kind,
    Layer,
    PlanError,
    Transition,
    primer_digest,
)
from spliced_connector.walk import families
from spliced_connector.walk.base import Architecture, SegmentLayer
from spliced_connector.walk.context import Context
from spliced_connector.walk.run import prefill


@dataclass(frozen=True)
class Primer:
    """The context after a primer of P tokens, which are at positions -P to -1.

    digest names the primer: it is the SHA-256 of the ids as little-endian u32. Each layer has the
    parts of its kind: state [Hv, dk, dv] in float32 or wider and conv [k-1, C], or k [P, KV, dk]
    and v [P, KV, dv]. These tensors are never written.
    """

    ids: tuple[int, ...]
    digest: bytes
    identity: Identity
    layers: tuple[SegmentLayer, ...]

    @property
    def tokens(self) -> int:
        """Returns P."""
        return len(self.ids)

    def check(self, arch: Architecture) -> None:
        """Raises PlanError unless the primer was computed by this model."""
        if self.identity is not arch.identity and self.identity != arch.identity:
            raise PlanError(f"primer {self.digest.hex()[:12]} was computed by another model")


def make_primer(
    arch: Architecture, ids: Sequence[int] | Tensor, device: torch.device | None = None
) -> Primer:
    """Computes a primer by a prefill of its token ids in an empty context.

    Raises PlanError if there are no ids, or if a layer cannot be moved to other positions.
    """
    tokens = ids.to(torch.int64) if isinstance(ids, Tensor) else torch.tensor(ids).long()
    if tokens.numel() == 0:
        raise PlanError("a primer without tokens")
    if why := primer_problem(arch.identity):
        raise PlanError(f"no primer: {why}")
    context = Context(arch, tokens.shape[0], device or tokens.device)
    prefill(arch, tokens, context)
    named = tuple(tokens.tolist())
    return Primer(
        ids=named,
        digest=primer_digest(named),
        identity=arch.identity,
        layers=tuple(_moved(arch, context, layer) for layer in range(len(arch.layers))),
    )


def primer_problem(identity: Identity) -> str:
    """Returns why a model can have no primer, empty if it can."""
    for number, layer in enumerate(identity.layers):
        if why := _fixed(layer):
            return f"layer {number}: {why}"
    return ""


def _fixed(layer: Layer) -> str:
    """Returns why a layer's context cannot be moved to other positions, empty if it can."""
    if layer.kind == Kind.CONV:
        return "a short convolution has no walk"
    if layer.kind.attends and layer.attention.keys != KeyMode.AT_ZERO:
        return "its keys are stored without their positions"
    if layer.kind == Kind.LINEAR and layer.linear.rope.dims:
        transition = layer.linear.family.transition
        if transition != Transition.SCALAR:
            return f"its state has rope and a {transition.name.lower()} transition"
    return ""


def _moved(arch: Architecture, context: Context, layer: int) -> SegmentLayer:
    """Returns one layer of a context, moved back by as many positions as the context has tokens."""
    described, at, back = arch.identity.layers[layer], context.layers[layer], -context.tokens
    if at.state is not None:
        state = families.rotate_state(at.state, back, described.linear.rope)
        return SegmentLayer(state=state, conv=at.conv)
    if described.kind == Kind.NONE:
        return SegmentLayer()
    k, v = context.rows(layer)
    by = torch.full((1,), back, device=k.device)
    return SegmentLayer(k=families.rotate(k, by, described.attention.rope), v=v)
