"""The state of a model: identities, sizes and layouts, keys of segments, and plans for prompts.

Most uses begin with `Profile`. `from_config` reads the identity of a model from its `config.json`.
The module `plan` divides a prompt into segments and spans. Needs the standard library only.
"""

from spliced_connector.model.config import from_config
from spliced_connector.model.config_digest import identity_digest
from spliced_connector.model.config_models import refused_window
from spliced_connector.model.digest import weights_digest
from spliced_connector.model.family import Family, Transition
from spliced_connector.model.fields import Fields
from spliced_connector.model.identity import (
    DEFAULT_TOLERANCE,
    MAX_TOKENS,
    MAX_TOLERANCE,
    Attention,
    Conv,
    DType,
    Identity,
    KeyMode,
    Kind,
    Layer,
    Linear,
    Role,
    Rope,
    SegmentSpec,
)
from spliced_connector.model.keys import (
    NOTHING,
    PrefixNames,
    prefix_hashes,
    primer_digest,
    segment_key,
    token_bytes,
)
from spliced_connector.model.layout import ALL_LAYERS, PART_ALIGN, Layout, Part
from spliced_connector.model.packed import PackedForm, packed_header, packed_heads, packed_rank
from spliced_connector.model.plan import (
    LAST_SEGMENT,
    MOST_CUTS,
    Choice,
    Lead,
    Piece,
    Plan,
    PlanError,
    Prompt,
    Span,
    SpanKind,
    all_primed,
    choose,
    divide,
    keep_for_reuse,
    make_plan,
)
from spliced_connector.model.profile import Profile
from spliced_connector.model.turns import answer_starts, turn_ends
from spliced_connector.model.validate import Problems
from spliced_connector.model.variants import UNBOUNDED, served, time_steps

__all__ = [
    "ALL_LAYERS",
    "DEFAULT_TOLERANCE",
    "LAST_SEGMENT",
    "MAX_TOKENS",
    "MAX_TOLERANCE",
    "MOST_CUTS",
    "NOTHING",
    "PART_ALIGN",
    "UNBOUNDED",
    "Attention",
    "Choice",
    "Conv",
    "DType",
    "Family",
    "Fields",
    "Identity",
    "KeyMode",
    "Kind",
    "Layer",
    "Layout",
    "Lead",
    "Linear",
    "PackedForm",
    "Part",
    "Piece",
    "Plan",
    "PlanError",
    "PrefixNames",
    "Problems",
    "Profile",
    "Prompt",
    "Role",
    "Rope",
    "SegmentSpec",
    "Span",
    "SpanKind",
    "Transition",
    "all_primed",
    "answer_starts",
    "choose",
    "divide",
    "from_config",
    "identity_digest",
    "keep_for_reuse",
    "make_plan",
    "packed_header",
    "packed_heads",
    "packed_rank",
    "prefix_hashes",
    "primer_digest",
    "refused_window",
    "segment_key",
    "served",
    "time_steps",
    "token_bytes",
    "turn_ends",
    "weights_digest",
]
