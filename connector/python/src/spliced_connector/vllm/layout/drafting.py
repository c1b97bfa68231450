"""The attention layers of a draft model, in addition to those of the model itself.

The model verifies all drafts, so the drafter's cache changes no answer. Its rows are stored anyway,
as further layers of the identity, because the drafter would draft badly after a prefix without
them. A drafter's last row depends on the token after it, so a request that continues with another
token has one wrong row; this costs at most one draft.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spliced_connector.errors import ProfileError
from spliced_connector.model import Attention, DType, Identity, Kind, Layer

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

_OWN_NAMES = ("draft_model.", "mtp.")
"""Prefixes of names of drafters' layers. Other drafters' layers have numbers after the model's."""

_DTYPES = {"torch.float32": DType.F32, "torch.float16": DType.F16, "torch.bfloat16": DType.BF16}


@dataclass(frozen=True, slots=True)
class Drafter:
    """The layers of one drafter. names: the engine's names of the drafter's layers, for each cache
    group; all empty for a drafter without rows."""

    names: tuple[tuple[str, ...], ...]
    layers: tuple[Layer, ...] = ()  # one for each name
    about: str = ""  # description of the drafter, as a part of the identity

    def apart(self, groups: Sequence[KVCacheGroupSpec]) -> list[KVCacheGroupSpec]:
        """Returns the engine's groups without the drafter's layers."""
        return [
            replace(group, layer_names=[n for n in group.layer_names if n not in names])
            if names
            else group
            for group, names in zip(groups, self.names, strict=True)
        ]

    def beside(self, identity: Identity) -> Identity:
        """Returns the identity of the model and its drafter."""
        if not any(self.names):
            return identity
        return replace(identity, layers=identity.layers + self.layers, adapter=self.about)

    def numbers(self, first: int) -> list[tuple[int, ...]]:
        """Returns the numbers of the layers, by group, counted from `first`."""
        out = []
        for names in self.names:
            out.append(tuple(range(first, first + len(names))))
            first += len(names)
        return out


def find_drafter(config: VllmConfig, caches: KVCacheConfig) -> Drafter:
    """Returns the drafter of this engine. Raises ProfileError for a layer without plain attention
    rows."""
    groups = caches.kv_cache_groups
    if config.speculative_config is None:
        return Drafter(tuple(() for _ in groups))
    own = int(config.model_config.hf_text_config.num_hidden_layers)
    names = tuple(tuple(n for n in g.layer_names if _drafts(n, own)) for g in groups)
    ranks = int(config.parallel_config.tensor_parallel_size)
    layers = tuple(
        _layer(group, ranks) for group, found in zip(groups, names, strict=True) for _ in found
    )
    return Drafter(names, layers, _about(config))


def _drafts(name: str, own: int) -> bool:
    """Returns whether a layer is a drafter's. own: number of layers of the model."""
    numbers = re.findall(r"(?<=\.)\d+(?=\.)", name)
    return name.startswith(_OWN_NAMES) or bool(numbers and int(numbers[-1]) >= own)


def _layer(group: KVCacheGroupSpec, ranks: int) -> Layer:
    spec = group.kv_cache_spec
    dtype = _DTYPES.get(str(getattr(spec, "dtype", None)))
    plain = type(spec).__name__ == "FullAttentionSpec" and spec.sliding_window is None
    if not plain or dtype is None:
        raise ProfileError(f"a drafter with a {type(spec).__name__} is not supported")
    heads, key_dim = int(spec.num_kv_heads), int(spec.head_size)
    value_dim = int(getattr(spec, "head_size_v", key_dim))
    # The drafter's keys are stored unchanged and never rotated, so the layer has no rope.
    return Layer(Kind.FULL, Attention(heads * ranks, key_dim, value_dim, dtype))


def _about(config: VllmConfig) -> str:
    """Returns a name that depends on the drafter's settings. Drafters with the same name share
    rows."""
    speculative = config.speculative_config
    model = speculative.draft_model_config
    described: Mapping[str, object] = {} if model is None else model.hf_config.to_dict()
    text = json.dumps([str(speculative.model), described], sort_keys=True, default=str)
    return f"drafts: {speculative.method} {hashlib.sha256(text.encode()).hexdigest()[:16]}"
