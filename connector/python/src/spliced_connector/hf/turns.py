"""Resuming inside the last turn of a conversation.

A chat template rewrites the previous turn: reasoning is dropped, white space trimmed, arguments
of tools are serialised again. The next prompt then diverges from the computed tokens a few tokens
before the end of the last prompt, or inside the answer, between two states. So the adapter stores
a state shortly before the end of the prompt (the base) and the rows of the tokens after it, one
node per token. If a prompt diverges inside these rows, the states are replayed, and nothing is
computed twice.

Rows are taken from the walk that has computed the prompt's end, and from the mixers' inputs while
the library decoded the answer. The rows are appended to a buffer of the daemon, which begins at the
state of the base. The nodes are saved from this buffer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import cast

import torch
from torch import Tensor, nn

from spliced_connector.client import (
    Accept,
    Buffer,
    Model,
    NewCheckpoint,
    Origin,
)
from spliced_connector.errors import Code
from spliced_connector.hf.steps import apart, bound
from spliced_connector.model import NOTHING, Profile, turn_ends
from spliced_connector.walk import (
    Architecture,
    Blocks,
    Context,
    Drafts,
    TurnRows,
    bytes_of,
    part_tensors,
    read_turn,
    tensor_over,
)

log = logging.getLogger("spliced")

MARGIN = 8
"""Minimum distance in tokens from a base to the end of its prompt, unless the base is the end of a
turn. The tokens with which a template requests an answer, and begins its reasoning, are fewer."""

MOST = 512
"""Maximum number of rows of a turn, even if more rows would fit into the bytes of one state. Each
row is one node of a chain of checkpoints, and a load lists at most 1,024 nodes."""

_APPENDED = 16
"""Number of rows that one request appends; the daemon's buffers grow in steps of this size."""


def most_rows(profile: Profile) -> int:
    """Returns how many rows take no more bytes than the states of linear layers, 0 if the states
    of a profile cannot be rebuilt from rows."""
    if not profile.keeps_rows:
        return 0
    row = profile.buffer_layout(_APPENDED).nbytes / _APPENDED
    return min(MOST, int(profile.checkpoint_layout(0).nbytes / row))


@dataclass
class Turn:
    """The last turn: the rows of tokens [base, rows.end), and a context with the keys and values
    of these tokens. state: the state after `base` tokens; None if the daemon has it or will get
    it with the other checkpoints."""

    base: int
    rows: TurnRows
    context: Context
    state: Context | None = None


def base_of(
    ids: Sequence[int],
    upto: int,
    begin: int,
    whole: bool,
    ends: frozenset[int],
    block_tokens: int,
    most: int,
) -> int | None:
    """Returns the token at which the rows of a turn begin, None if no rows are stored.

    The prompt `ids` was computed up to token `upto`, after `begin` reused tokens. `whole`: the
    daemon has the states after these tokens. At least half of the rows are reserved for the answer.
    A new base is at the end of the previous turn, or at a block, because every later prompt looks
    up these positions.
    """
    least = upto - most // 2
    if whole and least <= begin < upto:
        return begin
    block = (upto - MARGIN) // block_tokens * block_tokens
    for at in (*turn_ends(ids[:upto], ends)[-1:], block):
        if max(begin + 1, least) <= at < upto:
            return at
    return None


class Reading:
    """A context manager: in its block it records the inputs of the mixers of linear layers, for at
    most `most` tokens."""

    def __init__(self, arch: Architecture, most: int) -> None:
        self._modules = arch.linear_modules if isinstance(arch, Blocks) and most > 0 else {}
        self._most = most
        self._read: dict[int, list[Tensor]] = {layer: [] for layer in self._modules}
        self._count = dict.fromkeys(self._modules, 0)
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Reading:
        for layer, module in self._modules.items():
            hook = module.register_forward_pre_hook(self._keeper(layer), with_kwargs=True)
            self._hooks.append(hook)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _keeper(
        self, layer: int
    ) -> Callable[[nn.Module, tuple[object, ...], dict[str, object]], None]:
        rows = self._read[layer]

        def keep(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            room = self._most - self._count[layer]
            if room <= 0:
                return
            x = cast(Tensor, kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])
            rows.append(x[0, :room].clone())
            self._count[layer] += len(rows[-1])

        return keep

    @property
    def tokens(self) -> int:
        """Returns how many tokens all layers have read; 0 if layers differ."""
        counts = set(self._count.values())
        return counts.pop() if len(counts) == 1 else 0

    def read(self, tokens: int) -> dict[int, Tensor]:
        """Returns the rows of each layer for the first `tokens` tokens."""
        return {layer: torch.cat(rows)[:tokens] for layer, rows in self._read.items()}


def with_answer(
    arch: Architecture,
    turn: Turn,
    before: Context,
    after: Context,
    answered: list[int],
    read: Reading,
) -> Turn:
    """Returns a turn with the rows of those tokens of its answer whose mixers' inputs were
    recorded. `before` is the context where the turn's rows end and the library began to decode;
    `after` is the context after the answer."""
    n = min(read.tokens, after.tokens - before.tokens)
    if n <= 0 or before.tokens != turn.rows.end:
        return turn
    ids = answered[: before.tokens + n]
    rows = read_turn(arch, ids, before.snapshot(), read.read(n))
    return replace(turn, rows=turn.rows.joined(rows), context=after)


class Drafted:
    """The rows of an answer that is decoded with drafts, from the walks that verify them."""

    def __init__(self, turn: Turn | None, most: int) -> None:
        self._turn = turn
        self._rows = [] if turn is None else [turn.rows]
        self._most = most

    def accepted(self, drafts: Drafts, n: int) -> None:
        """Adds the rows of the first n drafts."""
        if (turn := self._turn) is not None and self._rows[-1].end < turn.base + self._most:
            self._rows.append(drafts.rows(n))

    def turn(self, after: Context) -> Turn | None:
        """Returns the turn with the rows of its answer; `after` is the context after it."""
        if self._turn is None:
            return None
        first, *others = self._rows
        return replace(self._turn, rows=first.joined(*others), context=after)


class Turns:
    """Stores the rows of turns in the daemon. The states replayed from the first turn are compared
    with the engine's states. If they differ by more than rounding, no rows are stored any more."""

    def __init__(self, arch: Architecture, model: Model, most: int) -> None:
        self.most = most
        self._arch = arch
        self._model = model
        self._profile = model.profile
        self._compared = False

    def save(self, turn: Turn, ids: Sequence[int]) -> list[Code | int]:
        """Saves the rows of a turn whose base the daemon has. Returns the outcome of each token."""
        rows = turn.rows.cut(turn.base + self.most)
        if rows.begin != turn.base or rows.end <= rows.begin:
            return []
        positions = range(max(turn.base, 1), rows.end + 1)
        names = self._model.prefix_hashes(list(ids), positions)
        if names is None:
            return []
        if turn.base == 0:
            names = [NOTHING, *names]
        buffer = self._open(turn, names[0], rows.end - rows.begin)
        if buffer is None:
            return []
        try:
            if not self._filled(buffer, rows) or not self._like(buffer, turn, rows):
                return []
            return self._model.save(self._nodes(turn, rows, names, buffer))
        finally:
            buffer.release()

    def _open(self, turn: Turn, base: bytes, n: int) -> Buffer | None:
        if turn.base == 0:
            return self._model.open_buffer(0, n)
        held = self._model.load(base, Accept.EXACT)
        if held is None:
            return None  # it was not saved, or was evicted
        try:
            if held.tokens != turn.base:
                return None
            return self._model.open_buffer(turn.base, n, Origin(checkpoint=held))
        finally:
            held.release()

    def _filled(self, buffer: Buffer, rows: TurnRows) -> bool:
        """Appends rows to a buffer and accepts them. Returns whether the daemon has done both."""
        rows = rows.on_host()
        for begin in range(rows.begin, rows.end, _APPENDED):
            end = min(begin + _APPENDED, rows.end)
            sent = rows.packed(self._profile, begin, end)
            if self._model.append(buffer, end - begin, sent) != Code.OK:
                return False
        return self._model.accept(buffer, rows.end - rows.begin) == Code.OK

    def _like(self, buffer: Buffer, turn: Turn, rows: TurnRows) -> bool:
        """Returns whether a replay gives the states of the turn's context. Only one turn is
        compared, the first whose context ends with its rows; True for all other turns."""
        if self._compared or turn.context.tokens != rows.end:
            return True
        slot = self._model.replay(buffer, rows.end)
        if slot is None:
            return False
        worst, view = 0.0, slot.view()
        for p in self._profile.checkpoint_layout(0).parts:
            at = turn.context.layers[p.layer]
            want = {"S": at.state, "conv": at.conv}.get(p.kind)
            if want is not None:
                got = tensor_over(view[p.offset : p.offset + p.nbytes], p.dtype, p.shape)
                worst = max(worst, apart(got, want.to("cpu")))
        if not slot.release():
            return False
        self._compared = True
        if worst <= bound(self._arch.dtype):
            return True
        self.most = 0
        log.warning(
            "turns are not resumed inside: replayed states are off by %.1e, rounding by less"
            " than %.1e",
            worst,
            bound(self._arch.dtype),
        )
        return False

    def _nodes(
        self, turn: Turn, rows: TurnRows, names: Sequence[bytes], buffer: Buffer
    ) -> list[NewCheckpoint]:
        """Returns one node per token, so that a prompt may diverge from the turn at any of them."""
        layout = self._profile.edge_layout(1)
        linear = set(self._profile.linear_layers)
        parts = tuple(p for p in layout.parts if p.layer not in linear)
        layout = replace(layout, parts=parts)
        found: dict[tuple[int, str], Tensor] = {}
        for layer in self._profile.attention_layers:
            k, v = turn.context.rows(layer)
            found[layer, "K"], found[layer, "V"] = (
                x[rows.begin : rows.end].detach().to("cpu") for x in (k, v)
            )
        out = []
        for i, tokens in enumerate(range(rows.begin + 1, rows.end + 1)):
            own = [found[p.layer, p.kind][i : i + 1] for p in parts]
            out.append(
                NewCheckpoint(
                    names[i + 1],
                    tokens,
                    names[i],
                    tokens - 1,
                    Accept.ROWS,
                    [bytes_of(x) for x in part_tensors(layout, own)],
                    buffer,
                )
            )
        return out


__all__ = ["Drafted", "Reading", "Turn", "Turns", "base_of", "most_rows", "with_answer"]
