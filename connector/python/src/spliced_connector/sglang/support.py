"""The properties of an engine, and whether the connector supports it.

`survey` reads SGLang's arguments and pools once, at the start. If anything is unknown, it raises
`Inert` with a one-line reason, and the connector does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from spliced_connector.errors import ProfileError
from spliced_connector.model import (
    DType,
    Identity,
    from_config,
    identity_digest,
    refused_window,
    served,
)
from spliced_connector.serving.inert import Inert
from spliced_connector.serving.weights import Loading, named_weights
from spliced_connector.sglang.splice_settings import SpliceSettings

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

TESTED = ("0.5.23",)
"""Releases of SGLang that the connector was run with."""

_DTYPES = {torch.float32: DType.F32, torch.float16: DType.F16, torch.bfloat16: DType.BF16}


@dataclass(frozen=True, slots=True)
class Engine:
    """The properties of the engine."""

    version: str
    identity: Identity
    page_tokens: int
    """Tokens of an engine's page: prefixes end at multiples of it."""
    states: bool
    """Whether requests have recurrent states."""
    rounds: bool = False
    """Whether decoding rounds the recurrent state at each token, as no prefill does."""


def loading_of(args: Any) -> Loading:
    """Returns the arguments that determine which files SGLang loads."""
    return Loading(
        model=str(args.model_path),
        load_format=str(args.load_format),
        revision=args.revision,
        download_dir=args.download_dir,
    )


def survey(context: TreeCacheBuildContext, settings: SpliceSettings) -> Engine:
    """Returns the properties of the engine. Raises Inert for anything unsupported, ValueError for a
    setting that names no weights."""
    release, args = version("sglang"), context.server_args
    if release not in TESTED and not settings.untested:
        raise Inert(f"SGLang {release} was never tested, {', '.join(TESTED)} was")
    device = str(args.device)
    if device != "cpu" and not settings.untested:
        raise Inert(f"device {device!r} was never tested, 'cpu' was")
    _check(context, args)
    page = int(context.params.page_size)
    if context.is_hybrid_ssm and page != 1:
        raise Inert(f"pages of {page} tokens beside recurrent states: start with --page-size 1")
    identity = _identify(context, args, settings)
    return Engine(release, identity, page, bool(context.is_hybrid_ssm), _rounds(context))


def _rounds(context: TreeCacheBuildContext) -> bool:
    pool = getattr(context.params.req_to_token_pool, "mamba_pool", None)
    return pool is not None and pool.mamba_cache.temporal.dtype is not torch.float32


def _check(context: TreeCacheBuildContext, args: Any) -> None:
    cache = str(args.kv_cache_dtype)
    strategy = str(args.mamba_radix_cache_strategy)
    refused = (
        (int(args.tp_size) > 1, "tensor parallel"),
        (int(args.pp_size) > 1, "pipeline parallel"),
        (int(args.dp_size) > 1 or bool(args.enable_dp_attention), "data parallel"),
        (bool(context.is_hybrid_swa), refused_window()),
        (bool(args.enable_lora), "adapters"),
        (args.speculative_algorithm is not None, "speculative decoding"),
        (str(args.disaggregation_mode) != "null", "prefill apart from decoding"),
        (cache not in ("auto", "bfloat16", "bf16"), f"a cache of {cache}"),
        (bool(args.enable_hierarchical_cache), "HiCache beside it"),
        # A state must stay in place until it is copied.
        (
            context.is_hybrid_ssm and strategy != "no_buffer",
            f"the state strategy {strategy!r} (start with --mamba-radix-cache-strategy no_buffer)",
        ),
        # An engine whose values change without a trace in weights or identity must not share with
        # others.
        (args.json_model_override_args not in ("{}", "", None), "json_model_override_args"),
        (args.quantization is not None, f"quantisation {args.quantization!r} at the start"),
    )
    for is_so, what in refused:
        if is_so:
            raise Inert(f"{what} is not supported")


def _described(context: TreeCacheBuildContext, args: Any) -> Mapping[str, object]:
    """Returns the model's config as transformers reads it, or SGLang's if transformers does not
    know the model. SGLang's own classes have other defaults, and all adapters must give a model the
    same name."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(args.model_path, revision=args.revision)
    except (OSError, ValueError):
        config = context.model_config.hf_text_config
    found: Mapping[str, object] = config.to_dict()
    return found


def _identify(context: TreeCacheBuildContext, args: Any, settings: SpliceSettings) -> Identity:
    weights = named_weights(settings, loading_of(args))
    described = _described(context, args)
    kv = context.params.token_to_kv_pool_allocator.get_kvcache().dtype
    pool = getattr(context.params.req_to_token_pool, "mamba_pool", None)
    conv, running = kv, torch.float32
    if pool is not None:
        running = pool.mamba_cache.temporal.dtype
        conv = pool.mamba_cache.conv[0].dtype if pool.mamba_cache.conv else kv
    if kv not in _DTYPES or conv not in _DTYPES:
        raise Inert(f"element types {kv} and {conv} are not supported")
    if described.get("model_type") == "mamba2" and described.get("rms_norm") is False:
        raise Inert("rms_norm is off: other engines norm such a model all the same")
    try:
        return from_config(
            described,
            identity_digest(
                weights,
                described,
                str(context.model_config.dtype),
                f"{running}{served(described)}",
            ),
            tp_size=int(args.tp_size),
            kv=_DTYPES[kv],
            conv=_DTYPES[conv],
            slopes=partial(_slopes, context),
            tolerance=settings.tolerance,
            row_tolerance=settings.row_tolerance,
        )
    except ProfileError as err:
        raise Inert(f"architecture {described.get('model_type')!r}: {err}") from err


def _slopes(context: TreeCacheBuildContext, layer: int, heads: int) -> tuple[float, ...]:
    """Returns the decay slopes of Lightning attention, as the engine's own backend has them."""
    backend = context.tp_worker.model_runner.attn_backend
    linear: Any = getattr(backend, "linear_attn_backend", None)
    kernels = getattr(linear, "linear_backend", None)
    if type(linear).__name__ != "LightningAttentionBackend" or kernels != "seg_la":
        raise Inert(f"Lightning attention by a {type(linear).__name__} with kernels {kernels!r}")
    return tuple(linear.tp_slope[layer].flatten().tolist())
