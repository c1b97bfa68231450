"""Leases of device memory, for a model on the same device."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from spliced_connector.client import (
    Accept,
    Client,
    DeviceCheckpoint,
    DeviceMemory,
    DeviceSegment,
    DeviceSlot,
    Model,
    release_after,
)
from spliced_connector.errors import SplicedError
from spliced_connector.gpu import CUDA, HOST, DeviceArray, Run, Stream
from spliced_connector.hf.device.placing import Placing, place_prefix
from spliced_connector.hf.device.reader import SEGMENTS, Reader, unreadable
from spliced_connector.hf.device.registered import ordinal
from spliced_connector.model import DType, Kind, Part, Profile, SegmentSpec
from spliced_connector.walk import (
    FIELDS,
    TORCH_TYPES,
    Architecture,
    Captured,
    Context,
    SegmentLayer,
    is_of_spec,
)

log = logging.getLogger("spliced")

_RELEASE_SECONDS = 10.0
"""Longest wait until a stream has passed its queued work and the daemon has noticed that."""


class Lent:
    """The daemon's device memory as one model can use it. Only the model's thread may use it."""

    def __init__(
        self,
        arch: Architecture,
        client: Client,
        model: Model,
        device: torch.device,
        *,
        is_host_memory: bool = False,
    ) -> None:
        """is_host_memory: the driver's device memory is memory of this process, so that a model on
        the CPU can use it. The simulated driver of our tests is such a driver."""
        self._arch = arch
        self._client = client
        self._model = model
        self._profile: Profile = model.profile
        self._device = device
        self._is_host_memory = is_host_memory
        self.tokens = 0
        """Tokens read from copies on the device whose bytes are known to be valid."""
        self._never = _unusable(arch) or self._elsewhere()
        self.reads = not self._never and not unreadable(arch)
        """Whether the kernels can attend in all of the model's layers."""

    @property
    def wanted(self) -> bool:
        """Whether copies on the device are used as soon as the daemon lends memory there."""
        return not self._never and self._client.options.device is not None

    def memory(self) -> DeviceMemory | None:
        """Returns the memory, with kernels for it; None while there is none for this model."""
        memory = None if self._never else self._client.device
        if memory is None or not memory.has_kernels:
            return None
        if not self._is_host_memory and memory.gpu.context.device != ordinal(self._device):
            return None
        return memory

    def why(self) -> str:
        """Returns why this model has no device memory; empty if it has."""
        if self.memory() is not None:
            return ""
        if self._never:
            return self._never
        if self._client.device is None:
            return self._client.device_state
        return "the daemon's memory is of another GPU, or its kernels are not loaded"

    def _elsewhere(self) -> str:
        if self._is_host_memory or self._device.type == "cuda":
            return ""
        return f"the model is on {self._device}"

    def stream(self) -> Stream:
        """Returns the stream that the engine computes on."""
        if self._is_host_memory:
            return Stream(0)
        return Stream(torch.cuda.current_stream(self._device).cuda_stream)

    def settle(self, memory: DeviceMemory) -> None:
        """Makes later work of the engine wait for the work that this class has queued. On a GPU
        both use the same stream, so there is nothing to do. On a CPU torch runs operations at once,
        so this method waits for the queued work."""
        if self._is_host_memory:
            with memory.gpu.context.current() as driver:
                driver.synchronize(self.stream())

    def acquire(self, keys: Sequence[bytes], life: float = 0.0) -> list[DeviceSegment | None]:
        """Leases the copies that exist, as `Model.acquire_device` does. The daemon makes missing
        copies for later requests."""
        if not keys or self.memory() is None:
            return [None] * len(keys)
        return self._model.acquire_device(keys, fetch=False, life=life)

    def captured(self, spec: SegmentSpec, held: DeviceSegment, in_place: bool) -> Captured:
        """Returns the tensors of a leased segment that a walk reads itself, in place: its
        convolution inputs, and its rows if these are read in place.

        Raises ValueError if the segment lacks parts of the spec, and `SplicedError`.
        """
        if not is_of_spec(self._profile, spec, held.layout):
            raise ValueError(f"segment of {held.layout.nbytes} bytes is not as its spec says")
        wanted = ("conv", "K", "V") if in_place else ("conv",)
        found: list[dict[str, Tensor]] = [{} for _ in self._arch.layers]
        for i, part in enumerate(held.layout.parts):
            if part.kind in wanted:
                rows = self._view(held.device, held.runs(i), part)
                found[part.layer][FIELDS[part.kind]] = rows
        return Captured(spec, tuple(SegmentLayer(**fields) for fields in found))

    def placing(self, held: dict[int, DeviceSegment]) -> Placing | None:
        """Returns the placer of leased segments, by their numbers in spans."""
        if not held:
            return None
        memory = next(iter(held.values())).device
        return Placing(self._profile, held, self.stream(), lambda: self.settle(memory))

    def wait(self) -> None:
        """Waits for all queued work of the engine's stream. Raises `SplicedError`."""
        if (memory := self.memory()) is not None:
            with memory.gpu.context.current() as driver:
                driver.synchronize(self.stream())

    def states(self, slot: DeviceSlot) -> dict[int, Tensor]:
        """Returns copies, by layer, of the states that a call of `assemble` has written to a slot.
        The slot is released after the copies. Raises `SplicedError`."""
        out = {}
        for part in self._profile.checkpoint_layout(0).parts:
            if part.kind == "S":
                run = Run(slot.address(part.offset, part.nbytes), part.nbytes)
                out[part.layer] = self._view(slot.device, [run], part).clone()
        release_after(self.stream(), [slot])
        return out

    def reader(self, held: Sequence[DeviceSegment]) -> Reader | None:
        """Returns a reader that attends over the rows of leased segments in place; None if they
        cannot be read in place."""
        if not held or not self.reads or len(held) > SEGMENTS:
            return None
        memory = held[0].device
        try:
            return Reader(memory, self.stream, lambda: self.settle(memory))
        except SplicedError as err:
            log.warning("rows on the GPU are copied: %s", err)
            return None

    def load(self, prefix: bytes, accept: Accept, room: int, tokens: int) -> Context | None:
        """Returns a context after a saved prefix of `tokens` tokens.

        Returns None if the prefix is not available, or if its lease ended during the copy.
        """
        if self.memory() is None:
            return None
        held = self._model.load_device(prefix, accept)
        if held is None:
            return None
        context = None
        try:
            context = self._restored(held, room, tokens)
        except (SplicedError, ValueError) as err:
            log.warning("checkpoint of %d tokens on the GPU not used: %s", held.tokens, err)
        if not self.release([held]) or context is None:
            return None
        self.tokens += held.tokens
        return context

    def release(
        self, held: Sequence[DeviceSegment | DeviceCheckpoint], stream: Stream | None = None
    ) -> bool:
        """Waits until a stream has done the work that is queued on it now, then ends the leases.
        stream: None for the stream on which the engine computes now. Returns whether all bytes of
        the leases were valid until they ended."""
        if not held:
            return True
        try:
            passing = release_after(self.stream() if stream is None else stream, held)
        except SplicedError as err:
            log.warning("leases of a GPU: %s", err)
            return False
        return passing is None or (passing.wait(_RELEASE_SECONDS) and all(passing.good))

    def _restored(self, held: DeviceCheckpoint, room: int, tokens: int) -> Context:
        if held.tokens != tokens:
            raise ValueError(f"the match was of {tokens}")
        for (begin, end), layout in zip(held.nodes, held.layouts, strict=True):
            if layout != self._profile.checkpoint_layout(end - begin):
                raise ValueError(f"node of tokens [{begin}, {end}) has another layout")
        context = Context(self._arch, room, self._device)
        place_prefix(self._profile, held, self.stream(), context)
        self.settle(held.device)
        last = len(held.nodes) - 1
        for i, part in enumerate(held.layouts[last].parts):
            at = context.layers[part.layer]
            into = {"S": at.state, "conv": at.conv}.get(part.kind)
            if into is not None and into.numel():
                into.copy_(self._view(held.device, held.runs(last, i), part))
        context.tokens, context.spliced = held.tokens, held.kind == Accept.SPLICED
        return context

    def _view(self, memory: DeviceMemory, runs: Sequence[Run], part: Part) -> Tensor:
        """Returns a part as a tensor: a view if the part is one run of memory, else a copy."""
        kind = HOST if self._is_host_memory else CUDA
        dtype = TORCH_TYPES[part.dtype]
        if not runs:
            return torch.empty(part.shape, dtype=dtype, device=self._device)
        pieces = [
            torch.from_dlpack(
                DeviceArray(
                    run.address,
                    (run.nbytes,),
                    DType.NONE,
                    memory.gpu.context.device,
                    memory.keep(),
                    kind,
                )
            )
            for run in runs
        ]
        whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return whole.view(dtype).view(part.shape)


def _unusable(arch: Architecture) -> str:
    """Returns why the kernels cannot write a model's tensors; empty if they can. They write states
    as float32, and rows in the stored type."""
    if arch.dtype == torch.float64:
        return "states are float64"
    for i, layer in enumerate(arch.identity.layers):
        if layer.kind in (Kind.LINEAR, Kind.NONE):
            continue
        if TORCH_TYPES.get(layer.attention.dtype) != arch.dtype:
            return f"rows of layer {i} are kept as {layer.attention.dtype.name}"
    return ""
