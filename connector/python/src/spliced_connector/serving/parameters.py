"""Detects that the weights of a running model are no longer those it was loaded with.

Keys of cached objects depend on the weights that were read at the start. Trainers write other
weights into a running engine. Each way of writing leaves different traces:

    written                                 `_version`   address   bytes
    parameter.copy_(new)                    changes                change
    parameter.data.copy_(new), as loaders do                       change
    parameter.data = new, or a new parameter             changes
    by another process, or a kernel                                change

So `Parameters` records the version and the address of every parameter, and a checksum of every MiB.
Each call of `changed` compares all versions and addresses, and the next few checksums. After
`doubt` it compares all checksums once, which reads every weight once, as a decoding step does.
Hooks around an engine's updates of weights and resets of its caches call `doubt`.

This module imports torch only once it gets a model.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_ROWS, _COLUMNS = 1024, 128
_BLOCK_BYTES = _ROWS * _COLUMNS * 8
"""Bytes that one checksum covers: 1 MiB, which stays in a processor's cache while it is summed."""
_AT_ONCE = 256
"""Blocks summed by one call on a device, where every call costs a launch."""
_IN_TURN = 2
"""Checksums compared by each call of `changed` without doubt."""

_Sums: TypeAlias = tuple[tuple[int, int], ...]
"""The two numbers of each block's checksum: see `_sums`."""
_Noticed = Callable[[], Callable[[], None] | None]
"""A function that returns the method `doubt` of a `Parameters`, None once that object is gone."""
_LOAD = "load_weights"
_MARK = "_spliced_doubts"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a module holds a parameter or buffer, with the tensor's address and version."""

    owner: dict[str, Tensor | None]
    name: str
    full_name: str
    address: int
    version: int  # -1: not compared

    def trouble(self) -> str:
        now = self.owner.get(self.name)
        if now is None:
            return f"{self.full_name} is gone"
        if now.data_ptr() != self.address:
            return f"{self.full_name} lies elsewhere"
        if self.version >= 0 and now._version != self.version:
            return f"{self.full_name} was written"
        return ""


@dataclass(frozen=True, slots=True)
class _Region:
    """The memory of one or more tensors, and its checksums block by block."""

    place: _Place
    sums: _Sums


class Parameters:
    """Watches all parameters and persistent buffers of models. Only the thread that runs the models
    may use it, but any thread may call `doubt`. Raises ValueError for an unreadable parameter.

    It holds no reference to parameters, so replaced parameters are freed. A call of `load_weights`
    of a model or of its modules counts as a call of `doubt`.
    """

    def __init__(self, *models: nn.Module) -> None:
        self._why = ""
        self._doubts = self._settled = 0
        self._places: list[_Place] = []
        self._regions: list[_Region] = []
        self._turn: Iterator[tuple[_Region, int]] = iter(())
        known: set[tuple[str, int]] = set()
        for model in models:
            self._add(model, known)
            _notice_loading(model, weakref.WeakMethod(self.doubt))

    def doubt(self) -> None:
        """Makes the next `changed` compare every byte."""
        self._doubts += 1

    def changed(self) -> str:
        """Returns what has changed, "" if nothing has. A change is never forgotten."""
        if not self._why:
            doubts = self._doubts  # a doubt during this call is handled by the next one
            try:
                compare = self._some if doubts == self._settled else self._all
                self._why = self._moved() or compare()
                self._settled = doubts
            except Exception as err:
                self._why = f"weights cannot be read any more: {type(err).__name__}: {err}"
            if self._why:
                self._places, self._regions, self._turn = [], [], iter(())
        return self._why

    def _add(self, model: nn.Module, known: set[tuple[str, int]]) -> None:
        for prefix, module in model.named_modules():
            hidden = module._non_persistent_buffers_set
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is None or name in hidden or not tensor.numel():
                    continue
                full_name = f"{prefix}.{name}" if prefix else name
                owner = module._parameters if name in module._parameters else module._buffers
                counted = owner is module._parameters and not tensor.is_inference()
                version = tensor._version if counted else -1
                place = _Place(owner, name, full_name, tensor.data_ptr(), version)
                self._places.append(place)
                self._sum(place, tensor, known)

    def _sum(self, place: _Place, tensor: Tensor, known: set[tuple[str, int]]) -> None:
        """Adds the memory of a tensor, only once if several tensors share it."""
        try:
            if not place.address:
                raise RuntimeError(f"a {type(tensor).__name__} without an address")
            memory = str(tensor.device), tensor.untyped_storage().data_ptr()
            if memory not in known:
                known.add(memory)
                self._regions.append(_Region(place, _sums(tensor)))
        except (RuntimeError, NotImplementedError) as err:
            raise ValueError(f"parameter {place.full_name} cannot be watched: {err}") from err

    def _moved(self) -> str:
        return next((why for place in self._places if (why := place.trouble())), "")

    def _some(self) -> str:
        """Compares the next few checksums, least recently compared first."""
        for _ in range(_IN_TURN):
            found = next(self._turn, None)
            if found is None:
                self._turn = _in_turn(self._regions)
                found = next(self._turn, None)
            if found is None:
                return ""
            region, block = found
            if _sums(_tensor(region), block, 1) != region.sums[block : block + 1]:
                return f"{region.place.full_name} has other values"
        return ""

    def _all(self) -> str:
        for region in self._regions:
            if _sums(_tensor(region)) != region.sums:
                return f"{region.place.full_name} has other values"
        return ""


def _in_turn(regions: list[_Region]) -> Iterator[tuple[_Region, int]]:
    """Yields every block once: the first of each region, then the second, and so on."""
    most = max((len(region.sums) for region in regions), default=0)
    for block in range(most):
        for region in regions:
            if block < len(region.sums):
                yield region, block


def _tensor(region: _Region) -> Tensor:
    found = region.place.owner.get(region.place.name)
    if found is None:
        raise RuntimeError(f"{region.place.full_name} is gone")
    return found


def _sums(tensor: Tensor, first: int = 0, count: int = 1 << 62) -> _Sums:
    """Returns the checksums of a tensor's storage, of `count` blocks from `first` on.

    A block is a table of 64-bit words. Its checksum has two numbers: a weighted sum of the sums of
    its rows, and a weighted sum of the sums of its columns. The weights are odd numbers that depend
    on the position. Odd weights lose no bit, so changing one word always changes both numbers.
    """
    import torch

    with torch.no_grad():
        raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        raw.set_(tensor.untyped_storage())
        raw = raw[first * _BLOCK_BYTES :][: count * _BLOCK_BYTES]
        whole = len(raw) // _BLOCK_BYTES
        table = raw[: whole * _BLOCK_BYTES].view(torch.int64).view(whole, _ROWS, _COLUMNS)
        at_once = 1 if raw.device.type == "cpu" else _AT_ONCE
        found = [_weighed(part) for part in table.split(at_once)]
        rest = raw[whole * _BLOCK_BYTES :]
        if len(rest):  # the last row is copied and padded, the other rows are summed in place
            rows = len(rest) // (_COLUMNS * 8)
            last = rest.new_zeros(_COLUMNS * 8)
            last[: len(rest) - rows * len(last)] = rest[rows * len(last) :]
            parts = [rest[: rows * len(last)].view(torch.int64), last.view(torch.int64)]
            first_rows, last_row = (part.view(1, -1, _COLUMNS) for part in parts)
            found.append(_weighed(first_rows) * 3 + _weighed(last_row))
        sums: list[list[int]] = torch.cat(found).tolist() if found else []
    return tuple((by_row, by_column) for by_row, by_column in sums)


def _weighed(table: Tensor) -> Tensor:
    """Returns the checksums [blocks, 2] of int64 words [blocks, rows, columns]."""
    import torch

    rows, columns = _weights(str(table.device))
    by_row = (table.sum(2) * rows[: table.shape[1]]).sum(1)
    return torch.stack((by_row, (table.sum(1) * columns).sum(1)), 1)


@functools.lru_cache(maxsize=16)
def _weights(device: str) -> tuple[Tensor, Tensor]:
    import torch

    def odd(count: int, factor: int) -> torch.Tensor:
        return (torch.arange(count, dtype=torch.int64, device=device) * 2 + 1) * factor

    return odd(_ROWS, 0x1E3779B97F4A7C15), odd(_COLUMNS, 0x2545F4914F6CDD1D)


_watchers: weakref.WeakKeyDictionary[nn.Module, list[_Noticed]] = weakref.WeakKeyDictionary()
"""The functions to call when a module loads weights. They are not stored on the module itself,
because a deep copy of the module would then notify the watch of the original."""


def _notice_loading(model: nn.Module, doubt: _Noticed) -> None:
    """Makes `load_weights` of a model and its inner modules call `doubt`."""
    for module in model.modules():
        owner = next((c for c in type(module).__mro__ if _LOAD in vars(c)), None)
        load = None if owner is None else vars(owner)[_LOAD]
        if owner is None or not inspect.isfunction(load):
            continue
        if not hasattr(load, _MARK):
            setattr(owner, _LOAD, _doubting(load))
        alive = [noticed for noticed in _watchers.get(module, ()) if noticed() is not None]
        _watchers[module] = [*alive, doubt]


def _doubting(load: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(load)
    def load_weights(self: nn.Module, *args: object, **options: object) -> object:
        _notify(self)  # because a comparison on another thread may see half-written weights
        try:
            return load(self, *args, **options)
        finally:
            _notify(self)

    setattr(load_weights, _MARK, True)
    return load_weights


def _notify(module: nn.Module) -> None:
    for noticed in _watchers.get(module, ()):
        if (doubt := noticed()) is not None:
            doubt()
