"""Registration of a model at the daemon."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.connection.exchange import Exchange
from spliced_connector.client.connection.flight import Call, Late
from spliced_connector.client.connection.options import MAX_NAME_BYTES, Options
from spliced_connector.client.device_memory import DeviceMemory, device_of
from spliced_connector.client.engine_memory import EngineMemory, MemoryLayer, duplicate
from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu import DeviceEngineMemory
from spliced_connector.model import Profile
from spliced_connector.wire import (
    Op,
    ProfileReply,
    ProfileRequest,
    RegisterDeviceReply,
    RegisterDeviceRequest,
    ShareWay,
)
from spliced_connector.wire.numbers import MAX_MEMORY_LAYERS

# The number of interior tokens for which sizes are compared with the daemon's. It is odd, so that
# padding in a per-token size shows up.
_PROBE_TOKENS = 509

_kept: list[DeviceEngineMemory] = []
"""GPU memory that a daemon may still have open. It is never freed, because that could make the GPU
fail for that daemon."""

_NO_ANSWER = {Code.UNAVAILABLE, Code.LATE, Code.BUSY, Code.CANCELED, Code.STALE}


@dataclass(frozen=True)
class Registration:
    """A model registered on one attachment."""

    attachment: Attachment
    enrolment: Enrolment
    options: Options
    tenant: int
    profile: int = 0
    memory: int = 0

    @property
    def exchange(self) -> Exchange:
        """The requests and replies of the connection."""
        return self.attachment.exchange

    @property
    def rank(self) -> int:
        """The tensor-parallel rank."""
        return self.enrolment.rank

    def call(
        self, op: int, seconds: float, *, gives_back: bool = False, cancel: bool = False
    ) -> Call:
        """Returns a request of this model with a timeout in seconds."""
        late = Late(self.tenant, gives_back=gives_back, cancel=cancel)
        return Call(op, time.monotonic() + seconds, late)

    def free_staging(self, call: Call) -> None:
        """Frees the staging of a call that was answered or never sent.

        An abandoned call keeps its staging until its reply has arrived.
        """
        if not call.left:
            self.attachment.staging.free(call.late.staged)
            call.late.staged = []


class Enrolment:
    """A model to register at every attachment."""

    def __init__(
        self,
        profile: Profile,
        tenant: int,
        rank: int,
        *,
        block_tokens: int = 0,
        connector: str = "",
        engine: str = "",
        memory: EngineMemory | DeviceEngineMemory | None = None,
    ) -> None:
        """Raises ValueError for arguments that can never be valid."""
        if not 0 <= rank < profile.identity.tp_size:
            raise ValueError(f"rank {rank} of {profile.identity.tp_size}")
        if not 0 <= block_tokens < 2**31:
            raise ValueError(f"blocks of {block_tokens} tokens")
        for name in (connector, engine):
            if len(name.encode()) > MAX_NAME_BYTES:
                raise ValueError(f"name of {len(name.encode())} bytes, at most {MAX_NAME_BYTES}")
        self.profile = profile
        self.tenant = tenant
        """Index in the client's tenants."""
        self.rank = rank
        self.block_tokens = block_tokens
        self.salt: bytes | None = None
        """The tenant's salt at the last daemon that registered the model."""
        self.registration: Registration | None = None
        self.refusal = ""
        """Why the daemon refuses the profile."""
        self.trouble = ""
        """Why the model is not registered, permanently or for now; empty if it is registered or no
        attempt was made."""
        self.not_before = 0.0
        """When to try again after the daemon did not answer, a time of `time.monotonic`."""
        self._refused_by: Attachment | None = None
        self._descriptor = -1
        self._exported: DeviceEngineMemory | None = None
        self._asked: DeviceMemory | None = None
        self._exports: list[Attachment] = []
        self.memory_trouble = ""
        """Why the daemon has not accepted the engine's GPU memory; empty if it has accepted it or
        was not asked."""
        if isinstance(memory, DeviceEngineMemory):
            if memory.exported.epoch == 0:
                raise ValueError("GPU memory that is not exported")
            self._exported, memory = memory, None
        self._request = self._describe(block_tokens, connector, engine, memory)

    def _describe(
        self, block_tokens: int, connector: str, engine: str, memory: EngineMemory | None
    ) -> ProfileRequest:
        layers = memory.layers if memory is not None else ()
        if memory is not None:
            if memory.nbytes <= 0 or len(layers) > MAX_MEMORY_LAYERS:
                raise ValueError(f"memory of {memory.nbytes} bytes, {len(layers)} layers")
            self._descriptor = duplicate(memory.descriptor)
        return ProfileRequest(
            block_tokens=block_tokens,
            probe_tokens=_PROBE_TOKENS,
            segment_bytes=self.profile.segment_bytes(_PROBE_TOKENS),
            checkpoint_bytes=self.profile.checkpoint_bytes(_PROBE_TOKENS),
            memory_bytes=memory.nbytes if memory is not None else 0,
            identity=self.profile.canonical,
            connector=connector,
            engine=engine,
            **_columns(layers),
        )

    def due(self, attachment: Attachment) -> bool:
        """Returns whether the model, or its GPU memory, must still be registered on this
        attachment."""
        if self._refused_by is attachment:
            return False
        if self.registration is None or self.registration.attachment is not attachment:
            return True
        return self._to_export(attachment) is not None

    def _to_export(self, attachment: Attachment) -> DeviceMemory | None:
        """Returns the device at which the engine's GPU memory must still be registered, None if
        there is none."""
        device = device_of(attachment)
        if self._exported is None or device is None or self._asked is device:
            return None
        return device

    def register(self, attachment: Attachment, options: Options) -> str | None:
        """Registers the model. Returns None if the daemon accepted the profile and the engine's
        memory, else why it did not.

        Afterwards `due` returns whether to try again.
        """
        known = self.registration
        if known is not None and known.attachment is attachment:
            return self._export(known)
        grant = attachment.greeting.grants[self.tenant]
        blank = Registration(attachment, self, options, grant.tenant)
        call = blank.call(Op.PROFILE, options.attach_timeout)
        try:
            if (tolerance := self.profile.identity.most_error) and not attachment.greeting.packed:
                text = f"profile: tolerance {tolerance} needs packing, which the daemon lacks"
                raise SplicedError(Code.UNSUPPORTED, text)
            attachment.exchange.start(call, self._request, self._descriptors())
            reply = attachment.exchange.result(call, ProfileReply)
            if reply.fingerprint != self.profile.fingerprint:
                raise SplicedError(Code.INVALID, "the daemon has another fingerprint")
        except SplicedError as err:
            self.trouble = str(err)
            if err.code not in _NO_ANSWER:
                self._refused_by, self.refusal = attachment, self.trouble
            return self.trouble
        self.salt = grant.salt
        self.refusal = self.trouble = ""
        self.registration = Registration(
            attachment, self, options, grant.tenant, reply.profile, reply.memory
        )
        return self._export(self.registration)

    def _export(self, r: Registration) -> str | None:
        """Registers the engine's GPU memory, once a device is attached. Returns why that failed, or
        None."""
        device = self._to_export(r.attachment)
        if device is None or self._exported is None:
            return None
        self._asked = device
        self._exports = [*(a for a in self._exports if not a.parted), r.attachment]
        chunks = self._exported.exported.chunks
        request = RegisterDeviceRequest(
            profile=r.profile,
            way=ShareWay.HANDLE,
            epoch=self._exported.exported.epoch,
            chunk_bytes=[chunk.nbytes for chunk in chunks],
            handles=b"".join(chunk.handle for chunk in chunks),
            offsets=[chunk.offset for chunk in chunks],
            **_columns(_offsets(self._exported)),
        )
        call = r.call(Op.REGISTER_DEVICE, r.options.attach_timeout)
        try:
            reply = r.exchange.request(call, request, RegisterDeviceReply)
        except SplicedError as err:
            if err.code in (Code.LATE, Code.BUSY):
                self._asked = None  # the next attempt registers the same memory
            self.memory_trouble = f"memory of the engine's GPU: {err}"
            return self.memory_trouble
        self.memory_trouble = ""
        self.registration = replace(r, memory=reply.memory)
        return None

    def _descriptors(self) -> tuple[int, ...]:
        return (self._descriptor,) if self._descriptor >= 0 else ()

    @property
    def exporting(self) -> bool:
        """Returns whether a daemon may have the engine's GPU memory open."""
        return any(not attachment.parted for attachment in self._exports)

    def close(self) -> None:
        """Drops the engine's memory, except GPU memory that a daemon may have open."""
        if self._exported is not None and self.exporting:
            _kept.append(self._exported)
        self._exported = None
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)


class _Columns(TypedDict):
    """Layers of engine memory in wire form."""

    memory_layer: list[int]
    memory_k_base: list[int]
    memory_v_base: list[int]
    memory_block_stride: list[int]
    memory_k_token_stride: list[int]
    memory_k_head_stride: list[int]
    memory_v_token_stride: list[int]
    memory_v_head_stride: list[int]


def _offsets(memory: DeviceEngineMemory) -> list[MemoryLayer]:
    """Returns the layers with offsets into the exported memory instead of addresses."""
    at = memory.exported.offset
    return [
        MemoryLayer(
            a.layer, at(a.k_address), at(a.v_address), a.block_stride,
            a.k_token_stride, a.k_head_stride, a.v_token_stride, a.v_head_stride,
        )
        for a in memory.layers
    ]  # fmt: skip


def _columns(layers: Sequence[MemoryLayer]) -> _Columns:
    return _Columns(
        memory_layer=[layer.layer for layer in layers],
        memory_k_base=[layer.k_base for layer in layers],
        memory_v_base=[layer.v_base for layer in layers],
        memory_block_stride=[layer.block_stride for layer in layers],
        memory_k_token_stride=[layer.k_token_stride for layer in layers],
        memory_k_head_stride=[layer.k_head_stride for layer in layers],
        memory_v_token_stride=[layer.v_token_stride for layer in layers],
        memory_v_head_stride=[layer.v_head_stride for layer in layers],
    )
