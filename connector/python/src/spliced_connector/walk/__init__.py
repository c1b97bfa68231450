"""Walks over a model's layers in torch: capture of segments, splices, checkpoints, the canary.

An `Architecture` describes the layers of one model. `architecture` finds it for a model of
transformers; engines provide their own.
"""

from typing import TYPE_CHECKING

from spliced_connector.lazy import attribute

if TYPE_CHECKING:
    from spliced_connector.walk.base import (
        Architecture,
        AttentionRows,
        Batch,
        Captured,
        Kernels,
        LinearRows,
        Placer,
        SegmentLayer,
        Sight,
        Steps,
    )
    from spliced_connector.walk.blocks import Blocks
    from spliced_connector.walk.canary import Canary, Verdict, logit_error
    from spliced_connector.walk.captures import capture, capture_all
    from spliced_connector.walk.checkpoints import checkpoint_parts, restore
    from spliced_connector.walk.context import Context, LayerContext
    from spliced_connector.walk.copies import Copies, ToHost
    from spliced_connector.walk.decoding.drafts import Drafts, verify
    from spliced_connector.walk.decoding.turns import (
        TurnRows,
        advance_mixers,
        at_once,
        prefill_turn,
        read_turn,
        restore_turn,
        turn_layer,
    )
    from spliced_connector.walk.families import Scan, angles, chunk_length, compose, turn
    from spliced_connector.walk.layers import causal_convolution
    from spliced_connector.walk.naming import Naming
    from spliced_connector.walk.paged import (
        GoneError,
        PagedRows,
        Pages,
        Place,
        RowsAt,
        Stretch,
    )
    from spliced_connector.walk.plain import altered
    from spliced_connector.walk.primer import Primer, make_primer, primer_problem
    from spliced_connector.walk.reading import UnsupportedError, child
    from spliced_connector.walk.registry import architecture
    from spliced_connector.walk.rows import Rows, ranges
    from spliced_connector.walk.run import PREFILL_ROWS, pieces, prefill, splice
    from spliced_connector.walk.segments import (
        FIELDS,
        TORCH_TYPES,
        by_layer,
        bytes_of,
        collect,
        is_of_spec,
        moved,
        pack,
        packed,
        part_bytes,
        part_tensors,
        rounded,
        tensor_over,
        unpack,
    )
    from spliced_connector.walk.softmax import Turns, attend, attend_runs, grouped

__all__ = [
    "FIELDS",
    "PREFILL_ROWS",
    "TORCH_TYPES",
    "Architecture",
    "AttentionRows",
    "Batch",
    "Blocks",
    "Canary",
    "Captured",
    "Context",
    "Copies",
    "Drafts",
    "GoneError",
    "Kernels",
    "LayerContext",
    "LinearRows",
    "Naming",
    "PagedRows",
    "Pages",
    "Place",
    "Placer",
    "Primer",
    "Rows",
    "RowsAt",
    "Scan",
    "SegmentLayer",
    "Sight",
    "Steps",
    "Stretch",
    "ToHost",
    "TurnRows",
    "Turns",
    "UnsupportedError",
    "Verdict",
    "advance_mixers",
    "altered",
    "angles",
    "architecture",
    "at_once",
    "attend",
    "attend_runs",
    "by_layer",
    "bytes_of",
    "capture",
    "capture_all",
    "causal_convolution",
    "checkpoint_parts",
    "child",
    "chunk_length",
    "collect",
    "compose",
    "grouped",
    "is_of_spec",
    "logit_error",
    "make_primer",
    "moved",
    "pack",
    "packed",
    "part_bytes",
    "part_tensors",
    "pieces",
    "prefill",
    "prefill_turn",
    "primer_problem",
    "ranges",
    "read_turn",
    "restore",
    "restore_turn",
    "rounded",
    "splice",
    "tensor_over",
    "turn",
    "turn_layer",
    "unpack",
    "verify",
]

_MODULES = {
    "softmax": "Turns attend attend_runs grouped",
    "base": (
        "Architecture AttentionRows Batch Captured Kernels LinearRows Placer SegmentLayer Sight"
        " Steps"
    ),
    "blocks": "Blocks",
    "captures": "capture capture_all",
    "canary": "Canary Verdict logit_error",
    "checkpoints": "checkpoint_parts restore",
    "context": "Context LayerContext",
    "copies": "Copies ToHost",
    "decoding.drafts": "Drafts verify",
    "families": "Scan angles chunk_length compose turn",
    "layers": "causal_convolution",
    "naming": "Naming",
    "paged": "GoneError PagedRows Pages Place RowsAt Stretch",
    "plain": "altered",
    "primer": "Primer make_primer primer_problem",
    "reading": "UnsupportedError child",
    "registry": "architecture",
    "rows": "Rows ranges",
    "run": "PREFILL_ROWS pieces prefill splice",
    "segments": (
        "FIELDS TORCH_TYPES by_layer bytes_of collect is_of_spec moved pack packed part_bytes"
        " part_tensors rounded tensor_over unpack"
    ),
    "decoding.turns": (
        "TurnRows advance_mixers at_once prefill_turn read_turn restore_turn turn_layer"
    ),
}


def __getattr__(name: str) -> object:
    return attribute(__name__, _MODULES, name)
