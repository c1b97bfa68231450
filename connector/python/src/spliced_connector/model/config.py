"""Reads a Hugging Face `config.json` into an `Identity`, with the rules of Go's `policy/profile`.

Every adapter makes identities with this module, because adapters with different identities would
share nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from spliced_connector.model.config_models import Types, known_types, read_layers, table
from spliced_connector.model.family import Family
from spliced_connector.model.fields import Fields
from spliced_connector.model.identity import MAX_HEADS, MAX_LAYERS, DType, Identity, Layer
from spliced_connector.model.validate import Problems

Slopes = Callable[[int, int], Sequence[float]]
"""A function from the index of a Lightning layer and its number of heads to the layer's decay
exponents, one per head."""


def from_config(
    config: Mapping[str, object],
    weights: bytes,
    *,
    model: str = "",
    adapter: str = "",
    tokenizer: str = "",
    tp_size: int = 1,
    kv: DType = DType.BF16,
    conv: DType = DType.BF16,
    state: DType = DType.F32,
    transition: DType = DType.F16,
    slopes: Slopes | None = None,
    tolerance: float = 0.0,
    row_tolerance: float = 0.0,
) -> Identity:
    """Returns the identity of a model from its config and the digest of its weights.

    `model` is the config's model_type by default. Scalar transitions are always F32, whatever
    `transition` is. `slopes` has no default, because engines compute the slopes of Lightning layers
    by different formulas. Raises `ProfileError`, naming every field that is missing or unusable.
    """
    problems = Problems()
    fields = Fields(config, problems)
    own_type = model_type = fields.text("model_type")
    if model_type in table()["wrappers"]:
        fields, model_type = fields.text_model(model_type)
    readable = known_types()
    known = model_type in readable
    if not known and not problems.texts:
        want = ", ".join(sorted(readable))
        problems.add(f"model_type {model_type!r} is not known, want one of {want}")
    layers: tuple[Layer, ...] = ()
    tp_size = max(tp_size, 1)
    if known:
        before = len(problems.texts)
        n = fields.layers()
        if 1 <= n <= MAX_LAYERS:
            types = Types(kv, conv, state, transition, tp_size)
            layers = _with_slopes(read_layers(fields, types, model_type, n), slopes, problems)
        elif len(problems.texts) == before:  # otherwise it is reported already
            problems.add(f"num_hidden_layers: {n}, want 1 to {MAX_LAYERS}")
    problems.refuse("config")
    name = model or own_type
    return Identity(name, weights, layers, adapter, tokenizer, tp_size, tolerance, row_tolerance)


def _with_slopes(
    layers: Sequence[Layer], slopes: Slopes | None, problems: Problems
) -> tuple[Layer, ...]:
    out = []
    for i, layer in enumerate(layers):
        heads = layer.linear.value_heads
        if layer.linear.family == Family.LIGHTNING and 1 <= heads <= MAX_HEADS:
            if slopes is None:
                problems.add("decay slopes: not in the config, they have to be given")
                break
            given = tuple(float(v) for v in slopes(i, heads))
            layer = replace(layer, linear=replace(layer.linear, slopes=given))
        out.append(layer)
    return tuple(out)
