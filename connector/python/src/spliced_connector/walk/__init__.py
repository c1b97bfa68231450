"""Walks over a model's layers in torch: capture of segments, splices, checkpoints, the canary.

An `Architecture` says what the layers of one model are; `architecture` finds it for a model of
transformers, engines bring their own.
"""

from typing import TYPE_CHECKING

from spliced_connector.lazy import attribute

if TYPE_CHECKING:
    from spliced_connector.walk.base import (
        Architecture,
        AttentionRows,
        Captured,
        LinearRows,
        SegmentLayer,
        Steps,
    )
    from spliced_connector.walk.canary import Canary, Verdict, logit_error
    from spliced_connector.walk.captures import capture, capture_all
    from spliced_connector.walk.checkpoints import checkpoint_parts, restore
    from spliced_connector.walk.context import Context, LayerContext
    from spliced_connector.walk.copies import Copies, ToHost
    from spliced_connector.walk.naming import Naming
    from spliced_connector.walk.plain import altered
    from spliced_connector.walk.reading import UnsupportedError, child
    from spliced_connector.walk.registry import architecture
    from spliced_connector.walk.run import prefill, splice, splice_long
    from spliced_connector.walk.segments import (
        TORCH_TYPES,
        by_layer,
        bytes_of,
        collect,
        moved,
        pack,
        packed,
        part_bytes,
        part_tensors,
        rounded,
        tensor_over,
        unpack,
    )

__all__ = [
    "TORCH_TYPES",
    "Architecture",
    "AttentionRows",
    "Canary",
    "Captured",
    "Context",
    "Copies",
    "LayerContext",
    "LinearRows",
    "Naming",
    "SegmentLayer",
    "Steps",
    "ToHost",
    "UnsupportedError",
    "Verdict",
    "altered",
    "architecture",
    "by_layer",
    "bytes_of",
    "capture",
    "capture_all",
    "checkpoint_parts",
    "child",
    "collect",
    "logit_error",
    "moved",
    "pack",
    "packed",
    "part_bytes",
    "part_tensors",
    "prefill",
    "restore",
    "rounded",
    "splice",
    "splice_long",
    "tensor_over",
    "unpack",
]

_MODULES = {
    "base": "Architecture AttentionRows Captured LinearRows SegmentLayer Steps",
    "captures": "capture capture_all",
    "canary": "Canary Verdict logit_error",
    "checkpoints": "checkpoint_parts restore",
    "context": "Context LayerContext",
    "copies": "Copies ToHost",
    "naming": "Naming",
    "plain": "altered",
    "reading": "UnsupportedError child",
    "registry": "architecture",
    "run": "prefill splice splice_long",
    "segments": (
        "TORCH_TYPES by_layer bytes_of collect moved pack packed part_bytes part_tensors rounded"
        " tensor_over unpack"
    ),
}


def __getattr__(name: str) -> object:
    return attribute(__name__, _MODULES, name)
