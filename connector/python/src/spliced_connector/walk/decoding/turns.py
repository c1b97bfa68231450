"""Rows of a turn of a conversation. From these rows, the states of linear layers at any token of
the turn are rebuilt without a forward pass.

A row is a token's decay, convolution input, key, and write: what the token adds to the state along
its key (`Profile.buffer_layout`). A walk computes all of them when it updates the states. For
tokens that the engine has decoded itself, rows are computed from the inputs of the engine's mixers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spliced_connector.model import PlanError, Profile, Span, SpanKind
from spliced_connector.walk import families
from spliced_connector.walk.base import Architecture, LinearRows, Recurrence
from spliced_connector.walk.checkpoints import HeldCheckpoint, PartReader
from spliced_connector.walk.context import Context
from spliced_connector.walk.rows import SplicedRows
from spliced_connector.walk.run import PREFILL_ROWS, Walk
from spliced_connector.walk.segments import bytes_of, part_tensors


@dataclass(frozen=True, slots=True)
class TurnLayer:
    """Rows of one linear layer, [n, ...] each. A row updates a state: S = decay S + key write^T.
    conv has the inputs of the convolution; None in a layer without one."""

    decay: Tensor
    conv: Tensor | None
    key: Tensor
    write: Tensor

    def cut(self, begin: int, end: int) -> TurnLayer:
        """Returns rows [begin, end)."""
        conv = None if self.conv is None else self.conv[begin:end]
        return TurnLayer(self.decay[begin:end], conv, self.key[begin:end], self.write[begin:end])


@dataclass(frozen=True, slots=True)
class TurnRows:
    """Rows of the tokens [begin, end) of a prompt, by linear layer."""

    begin: int
    end: int
    layers: Mapping[int, TurnLayer]

    def cut(self, end: int) -> TurnRows:
        """Returns the rows of the tokens before `end`."""
        end = min(end, self.end)
        n = end - self.begin
        return TurnRows(self.begin, end, {i: x.cut(0, n) for i, x in self.layers.items()})

    def joined(self, *more: TurnRows) -> TurnRows:
        """Returns these rows followed by `more`. Raises PlanError if the tokens have a gap."""
        end = self.end
        for rows in more:
            if rows.begin != end:
                raise PlanError(f"rows from token {rows.begin} on after rows to {end}")
            end = rows.end
        layers = {
            i: _joined([x, *(rows.layers[i] for rows in more)]) for i, x in self.layers.items()
        }
        return TurnRows(self.begin, end, layers)

    def packed(self, profile: Profile, begin: int, end: int) -> bytearray:
        """Returns the rows of tokens [begin, end) in the form of `Profile.buffer_layout`. Raises
        ValueError if they do not fit it."""
        layout = profile.buffer_layout(end - begin)
        some = {i: x.cut(begin - self.begin, end - self.begin) for i, x in self.layers.items()}
        found = [_part(some[p.layer], p.kind) for p in layout.parts]
        out = bytearray(layout.nbytes)
        for p, x in zip(layout.parts, part_tensors(layout, found), strict=True):
            out[p.offset : p.offset + p.nbytes] = bytes_of(x.to("cpu"))
        return out

    def on_host(self) -> TurnRows:
        """Returns the rows in host memory, by one copy for all of them."""
        names = [(i, name) for i, x in self.layers.items() for name in _FIELDS]
        given = {at: getattr(self.layers[at[0]], at[1]) for at in names}
        there = {at: x for at, x in given.items() if x is not None}
        if all(x.device.type == "cpu" for x in there.values()):
            return self
        brought = dict(zip(there, at_once(list(there.values())), strict=True))
        layers = {
            i: TurnLayer(**{name: brought.get((i, name)) for name in _FIELDS}) for i in self.layers
        }
        return TurnRows(self.begin, self.end, layers)


_FIELDS = ("decay", "conv", "key", "write")


def at_once(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns host copies of tensors of one device. All are copied at once, because each copy
    waits for the device."""
    if not tensors:
        return []
    # The largest elements come first, so that every tensor is aligned in the joined bytes.
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
    flat = [tensors[i].contiguous().view(-1).view(torch.uint8) for i in order]
    whole = torch.cat(flat).to("cpu")
    out = list(tensors)
    for i, x in zip(order, whole.split([len(x) for x in flat]), strict=True):
        out[i] = x.view(tensors[i].dtype).view(tensors[i].shape)
    return out


def _joined(rows: Sequence[TurnLayer]) -> TurnLayer:
    convs = [x.conv for x in rows if x.conv is not None]
    return TurnLayer(
        torch.cat([x.decay for x in rows]),
        torch.cat(convs) if len(convs) == len(rows) else None,
        torch.cat([x.key for x in rows]),
        torch.cat([x.write for x in rows]),
    )


def _part(rows: TurnLayer, kind: str) -> Tensor | None:
    return {"T": rows.decay, "conv": rows.conv, "K": rows.key, "V": rows.write}[kind]


class _Recorded(Walk):
    """A walk over one span that records the rows of its linear layers."""

    def __init__(self, arch: Architecture, rows: SplicedRows, context: Context) -> None:
        super().__init__(arch, rows, context, None)
        self._seen: dict[int, tuple[families.Scan, Tensor | None]] = {}

    def recurrence(self, layer: int, conv_out: Tensor | None, rows: LinearRows) -> Recurrence:
        made = super().recurrence(layer, conv_out, rows)
        if isinstance(made, families.Scan):
            self._seen[layer] = (made, rows.conv)
        return made

    def advance(self, layer: int, x: Tensor) -> None:
        """Moves the state of one layer over rows that its mixer has read."""
        before = self.context.layers[layer].state
        if before is None:
            raise PlanError(f"layer {layer} of the context keeps no state")
        new = self.arch.linear(layer, x, self.rows.positions)
        out, tail = self._convolved(layer, new.conv)
        state = self._through(layer, before, self.recurrence(layer, out, new))
        self.moved.append((layer, state, tail))

    def left(self) -> TurnRows:
        """Returns the rows of all tokens of the span. They reference no memory of the walk."""
        span = self.rows.spans[0]
        layers = {i: turn_layer(scan, conv) for i, (scan, conv) in self._seen.items()}
        return TurnRows(span.start, span.end, layers)


def turn_layer(scan: families.Scan, conv: Tensor | None) -> TurnLayer:
    """Returns the rows of a recurrence that has one run. conv: the inputs of the convolution.

    `scan.advance` must have been called for the run."""
    steps, wide = scan.steps, scan.wide
    return TurnLayer(steps.decay.double().exp().to(wide), conv, steps.k.to(wide), scan.writes(0))


def _walk(arch: Architecture, ids: Tensor, context: Context) -> _Recorded:
    span = Span(SpanKind.RECOMPUTE, context.tokens, len(ids) - context.tokens)
    rows = SplicedRows(arch, ids, [span], {}, context.tokens)
    return _Recorded(arch, rows, context)


def prefill_turn(
    arch: Architecture, ids: Sequence[int], context: Context
) -> tuple[Tensor, TurnRows]:
    """Computes the remaining tokens of ids as `prefill` does, at most `PREFILL_ROWS`. Returns their
    hidden rows, and their rows for `restore_turn`."""
    n = len(ids) - context.tokens
    if not 0 < n <= PREFILL_ROWS:
        raise PlanError(f"rows of {n} tokens after {context.tokens}")
    with torch.no_grad():
        walk = _walk(arch, torch.tensor(ids, device=context.device), context)
        context.reserve(len(ids))
        hidden = walk.run()
        if hidden is None:
            raise PlanError("no row of the prompt was computed")
        context.tokens = len(ids)
        return hidden, walk.left()


def advance_mixers(
    arch: Architecture, ids: Sequence[int], context: Context, read: Mapping[int, Tensor]
) -> None:
    """Updates only the states and convolution inputs of a context, by the next tokens of ids.

    read: for each linear layer, the rows [n, width] that its mixer has read for these tokens.
    """
    with torch.no_grad():
        _advanced(arch, ids, context, read)


def read_turn(
    arch: Architecture, ids: Sequence[int], context: Context, read: Mapping[int, Tensor]
) -> TurnRows:
    """Does what `advance_mixers` does, and returns the rows of the tokens."""
    with torch.no_grad():
        return _advanced(arch, ids, context, read).left()


def _advanced(
    arch: Architecture, ids: Sequence[int], context: Context, read: Mapping[int, Tensor]
) -> _Recorded:
    walk = _walk(arch, torch.tensor(ids, device=context.device), context.snapshot())
    for layer, x in read.items():
        walk.advance(layer, x)
    for layer, state, tail in walk.moved:
        at = context.layers[layer]
        at.state, at.conv = state, tail
    return walk


def restore_turn(
    arch: Architecture,
    profile: Profile,
    held: HeldCheckpoint,
    states: memoryview,
    room: int,
    device: torch.device,
) -> Context:
    """Returns a context after a leased checkpoint that is stored as rows.

    Keys and values come from the checkpoint. `states` is the result of the daemon's replay: states
    and convolution inputs at the checkpoint's last token. All parts are copied. Raises ValueError
    if a node's layout does not fit the model, or `states` is too short.
    """
    context = Context(arch, room, device)
    reader, attends = PartReader(context), set(profile.attention_layers)
    for node, ((begin, end), layout) in enumerate(zip(held.nodes, held.layouts, strict=True)):
        if layout not in (profile.edge_layout(end - begin), profile.checkpoint_layout(end - begin)):
            raise ValueError(f"node of tokens [{begin}, {end}) has another layout")
        for i, part in enumerate(layout.parts):
            if part.layer in attends:
                reader.read(part, held.part(node, i), begin, end)
    layout = profile.checkpoint_layout(0)
    if len(states) < layout.nbytes:
        raise ValueError(f"states of {len(states)} bytes")
    for part in layout.parts:
        if part.layer not in attends:
            view = states[part.offset : part.offset + part.nbytes]
            reader.read(part, view, 0, held.tokens)
    context.tokens = held.tokens
    return context
