"""Finds where an engine stores a recurrent layer's state and convolution tail, by running the
layer.

The shape of the memory does not show the order: some kernels store [key, value] in memory whose
shape is [value, key]. So the layer computes some tokens in scratch memory with the strides of its
cache (`mixers`), and these conditions are checked:

  - the tail is the last inputs, the oldest first;
  - a change of one value at the last token changes only that value's column in its head's state;
  - after a state was read and written elsewhere, the layer continues with bit-identical results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spliced_connector.model import Kind, Profile
from spliced_connector.vllm.layout.mixers import Mixer, Span, mixer_of, run
from spliced_connector.vllm.layout.rows import MOST_SCRATCH, UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_LEVELS = 128
"""Number of different input values, so few that all element types represent them exactly."""
_SHARES = 3
"""Each run checks one in this many heads."""


@dataclass(frozen=True)
class StateOrder:
    """The order of the elements of a layer's state and tail."""

    key_major: bool  # memory order is [heads, key dim, value dim], whatever the shape says
    conv_dim_first: bool  # tails are [channels, kernel - 1]


class StatePages:
    """The recurrent states and convolution tails of one layer, one of each per block.

    A layer may have only one of the two. Canonical states are [value heads, key dim, value dim] in
    float32, tails [kernel - 1, channels].
    """

    def __init__(self, conv: Tensor | None, state: Tensor | None, order: StateOrder) -> None:
        self._conv, self._state = conv, state
        self._order = order
        self.parts = ("S",) * (state is not None) + ("conv",) * (conv is not None)
        """Names of the parts that exist, as in layouts."""

    @property
    def device(self) -> torch.device:
        """Returns the device of the tensors."""
        known = self._conv if self._state is None else self._state
        return torch.device("cpu") if known is None else known.device

    def read(self, block: int) -> tuple[Tensor, ...]:
        """Returns contiguous copies of the `parts`."""
        state, conv = self._views(block)
        views = ((state, torch.float32), (conv, None))
        return tuple(_copy(view, dtype) for view, dtype in views if view is not None)

    def write(self, block: int, *parts: Tensor) -> None:
        """Replaces the parts of a block, given in the order of `self.parts`."""
        views = [view for view in self._views(block) if view is not None]
        for view, part in zip(views, parts, strict=True):
            view.copy_(part)

    def _views(self, block: int) -> tuple[Tensor | None, Tensor | None]:
        state = conv = None
        if self._state is not None:
            state = self._state[block]
            if not self._order.key_major:
                state = state.transpose(1, 2)
        if self._conv is not None:
            conv = self._conv[block]
            if self._order.conv_dim_first:
                conv = conv.transpose(0, 1)
        return state, conv


def _copy(view: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Returns a copy that is contiguous also in dimensions of one element, whose strides may be
    arbitrary."""
    made = torch.empty(view.shape, dtype=dtype or view.dtype, device=view.device)
    return made.copy_(view)


def find_states(module: Any, profile: Profile, layer: int, config: VllmConfig) -> StateOrder:
    """Returns the order of one recurrent layer of the engine. Raises UnsupportedError."""
    return _Look(module, profile, layer, config).order()


def state_pages(module: Any, profile: Profile, layer: int, order: StateOrder) -> StatePages:
    """Returns a layer's blocks. Raises UnsupportedError for shapes that do not fit the profile."""
    return _pages(_caches(module), profile, layer, order)


def conv_dim_first(module: Any, profile: Profile, layer: int) -> bool:
    """Returns the order of a layer's tails by their shape; False without a convolution."""
    conv, _ = _split(_caches(module), profile, layer)
    if conv is None:
        return False
    rows, channels = (
        profile.identity.layers[layer].linear.conv.rows,
        profile.rank_conv_channels(layer),
    )
    # With speculative decoding there is room for more rows than a tail has.
    first, second = conv.shape[1:]
    if channels not in (first, second) or not rows <= min(first, second) < channels:
        raise UnsupportedError(f"tails of {(first, second)}, want {(rows, channels)}")
    return bool(first == channels)


def _caches(module: Any) -> tuple[Tensor, ...]:
    cache = getattr(module, "kv_cache", None)
    if not isinstance(cache, tuple | list):
        raise UnsupportedError(f"cache is {type(cache).__name__}, want tensors")
    return tuple(cache)


def _split(
    caches: Sequence[Tensor], profile: Profile, layer: int
) -> tuple[Tensor | None, Tensor | None]:
    """Returns tails and states of a layer's caches, in which tails are first."""
    at = profile.identity.layers[layer]
    has_conv, has_state = at.linear.conv.rows > 0, at.kind == Kind.LINEAR
    if len(caches) != has_conv + has_state:
        raise UnsupportedError(f"{len(caches)} caches, want {has_conv + has_state}")
    return (caches[0] if has_conv else None), (caches[-1] if has_state else None)


def _pages(caches: Sequence[Tensor], profile: Profile, layer: int, order: StateOrder) -> StatePages:
    conv, state = _split(caches, profile, layer)
    if state is not None:
        state = _by_head(state, profile, layer, order.key_major)
    if conv is not None:
        # The inputs of drafts come after those of accepted tokens.
        rows = profile.identity.layers[layer].linear.conv.rows
        conv = conv.narrow(2 if order.conv_dim_first else 1, 0, rows)
    return StatePages(conv, state, order)


def _by_head(state: Tensor, profile: Profile, layer: int, key_major: bool) -> Tensor:
    """Returns states in memory order: [blocks, heads, key dim, value dim] if `key_major`, else with
    value dim before key dim."""
    linear = profile.identity.layers[layer].linear
    _, heads = profile.rank_heads(layer)
    inner = (linear.key_dim, linear.value_dim)
    shapes: set[tuple[int, ...]] = {(heads, *inner), (heads, *inner[::-1])}
    if linear.value_dim == 1:
        shapes.add((heads, linear.key_dim))
    if tuple(state.shape[1:]) not in shapes or not state[0].is_contiguous():
        raise UnsupportedError(
            f"states of {tuple(state.shape[1:])} in strides {state.stride()}, want {shapes}"
        )
    return state.view(len(state), heads, *(inner if key_major else inner[::-1]))


class _Look:
    """Runs a layer in scratch memory and finds its order."""

    def __init__(self, module: Any, profile: Profile, layer: int, config: VllmConfig) -> None:
        self._module, self._profile, self._layer = module, profile, layer
        self._config = config
        self._mixer = self._known()
        self._caches = _caches(module)
        self._conv_dim_first = conv_dim_first(module, profile, layer)
        self._linear = profile.identity.layers[layer].linear
        self._tokens = self._linear.conv.rows + 4
        self._cut = self._tokens - 2
        self._check_slopes()

    def order(self) -> StateOrder:
        self._warm_up()
        order = StateOrder(False, self._conv_dim_first)
        if self._profile.identity.layers[self._layer].kind == Kind.LINEAR:
            order = StateOrder(self._is_key_major(), self._conv_dim_first)
        self._check_tail(order)
        self._check_going_on(order)
        return order

    def _warm_up(self) -> None:
        """Runs the layer once for each shape without using the results, because some kernels tune
        themselves in their first run."""
        inputs = self._inputs()
        for begin, end in ((0, self._tokens), (0, self._cut), (self._cut, self._tokens)):
            self._run(self._scratch(), inputs[begin:end], begin)

    def _known(self) -> Mixer:
        name = type(self._module).__name__
        mixer = mixer_of(self._module)
        family = self._profile.identity.layers[self._layer].linear.family
        if mixer is None:
            raise UnsupportedError(f"layers of class {name} are not known")
        if mixer.family != family:
            raise UnsupportedError(f"a {name} keeps {mixer.family.name}, want {family.name}")
        return mixer

    def _check_slopes(self) -> None:
        """Checks that the engine's decay factors equal those of the profile."""
        slopes = self._linear.slopes
        if not slopes:
            return
        has = getattr(self._module, "slope_rate", None)
        if not isinstance(has, Tensor) or tuple(has.flatten().tolist()) != slopes:
            raise UnsupportedError("decays differ from the profile's")

    def _check_tail(self, order: StateOrder) -> None:
        """Checks that the last inputs come back unchanged, the oldest first."""
        rows = self._linear.conv.rows
        if not rows:
            return
        caches, inputs = self._scratch(), self._inputs()
        self._run(caches, inputs, 0)
        tail = _pages(caches, self._profile, self._layer, order).read(1)[-1]
        if not torch.equal(tail, inputs[-rows:].to(tail.dtype)):
            raise UnsupportedError("tails are not the last inputs, oldest first")

    def _is_key_major(self) -> bool:
        """Returns whether states are key-major. Changes values at the last token. In the right
        order of the state's elements, each value changes only the column of that value in its head.

        A third of the heads is tested at a time, with different columns, so that the wrong order
        does not fit by chance.
        """
        _, heads = self._profile.rank_heads(self._layer)
        fits = {False, True}
        for some in range(min(_SHARES, heads)):
            asked = torch.arange(some, heads, _SHARES)
            columns = (asked + some) % self._linear.value_dim
            inputs = self._inputs()
            other = inputs.clone()
            places = self._first_value() + asked * self._linear.value_dim + columns
            other[-1, places] = -inputs[-1, places]
            moved = self._state_after(inputs) != self._state_after(other)
            fits &= {order for order in fits if self._shows(moved, order, asked, columns)}
        if not fits or (len(fits) > 1 and self._linear.key_dim > 1 < self._linear.value_dim):
            raise UnsupportedError("states hold a key and a value at an unknown place")
        return True in fits

    def _shows(self, moved: Tensor, key_major: bool, heads: Tensor, columns: Tensor) -> bool:
        """Returns whether all changes are in the given column of each of these heads, and more than
        a quarter of the elements of these columns have changed. Not all elements can change: a
        channel with zero weights changes nothing, and heads that were widened with zeros have such
        channels in one half."""
        by_head = _by_head(moved.unsqueeze(0), self._profile, self._layer, key_major)[0]
        if not key_major:
            by_head = by_head.transpose(1, 2)
        inside = by_head[heads, :, columns]
        return bool(inside.sum() == moved.sum() and 4 * inside.sum() > inside.numel())

    def _check_going_on(self, order: StateOrder) -> None:
        """Checks that a layer continues with identical results after its state was read from one
        block and written to another."""
        inputs, cut = self._inputs(), self._cut
        stays, moves = self._scratch(), self._scratch(fill=1.0)
        self._run(stays, inputs[:cut], 0)
        parts = _pages(stays, self._profile, self._layer, order).read(1)
        _pages(moves, self._profile, self._layer, order).write(1, *parts)
        out, again = (self._run(caches, inputs[cut:], cut) for caches in (stays, moves))
        stay, move = (
            _pages(caches, self._profile, self._layer, order).read(1) for caches in (stays, moves)
        )
        same = torch.equal(out, again) and all(map(torch.equal, stay, move))
        if not same or not bool(torch.isfinite(out).all()):
            raise UnsupportedError("a moved state does not continue identically")

    def _state_after(self, inputs: Tensor) -> Tensor:
        caches = self._scratch()
        self._run(caches, inputs, 0)
        return caches[-1][1].clone()

    def _first_value(self) -> int:
        """Returns the index of the first channel of the values."""
        _, heads = self._profile.rank_heads(self._layer)
        width = heads * self._linear.value_dim
        return self._channels() - width if self._mixer.values_last else 0

    def _channels(self) -> int:
        if self._linear.conv.rows:
            return self._profile.rank_conv_channels(self._layer)
        keys, values = self._profile.rank_heads(self._layer)
        return 2 * keys * self._linear.key_dim + values * self._linear.value_dim

    def _inputs(self) -> Tensor:
        """Returns inputs from -2 to 2, never 0, that do not repeat with the period of heads or
        kernels."""
        n = self._tokens * self._channels()
        steps = torch.arange(n) * 37 % (_LEVELS - 1) - _LEVELS // 2
        numbers = torch.where(steps >= 0, steps + 1, steps) / (_LEVELS // 4)
        like = self._module.model_config.dtype
        return numbers.view(self._tokens, -1).to(self._caches[0].device, like)

    def _scratch(self, fill: float = 0.0) -> tuple[Tensor, ...]:
        """Returns scratch memory for two blocks of each cache."""
        for cache in self._caches:
            if cache.stride(0) * cache.element_size() > MOST_SCRATCH:
                raise UnsupportedError(f"a block is spread over strides {cache.stride()}")
        made = [
            torch.empty_strided((2, *c.shape[1:]), c.stride(), dtype=c.dtype, device=c.device)
            for c in self._caches
        ]
        return tuple(c.fill_(fill) for c in made)

    def _run(self, caches: tuple[Tensor, ...], inputs: Tensor, begin: int) -> Tensor:
        try:
            return run(self._module, self._config, caches, Span(inputs, begin, 1))
        except Exception as err:  # the engine's kernels may raise anything
            name = type(self._module).__name__
            raise UnsupportedError(f"{name}: {type(err).__name__}: {err}") from err
