"""Reads the layers of a model from its config, with the rules in `models.json`.

The daemon reads the same file, which is a copy of Go's `policy/profile/models.json`.
`config_table.go` next to that describes what its rows may contain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from spliced_connector.model.family import Family, Transition
from spliced_connector.model.fields import Fields
from spliced_connector.model.identity import (
    Attention,
    Conv,
    DType,
    KeyMode,
    Kind,
    Layer,
    Linear,
    Rope,
)

# The usual names in configs. The shorter names are from before transformers 5.
_LAYER_NAMES = {
    "linear_attention": "linear",
    "mamba": "linear",
    "full_attention": "full",
    "attention": "full",
}

_Row = Mapping[str, Any]


@cache
def table() -> Mapping[str, Any]:
    """Returns `models.json`."""
    path = Path(__file__).with_name("models.json")
    loaded: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded


def known_types() -> set[str]:
    """Returns all types of models that have a row."""
    return {name for row in table()["models"] for name in row["types"]}


def refused_window() -> str:
    """Returns why adapters refuse a model with a layer of sliding-window attention."""
    why: str = table()["refused"]["window"]
    return why


@dataclass(frozen=True, slots=True)
class Types:
    """Settings that a config does not have: element types and the number of ranks."""

    kv: DType
    conv: DType
    state: DType
    transition: DType
    tp_size: int


def read_layers(f: Fields, t: Types, model_type: str, n: int) -> list[Layer]:
    """Returns the layers of a profile for `n` decoder layers, by the first row for `model_type`
    that applies."""
    for row in table()["models"]:
        if model_type not in row["types"]:
            continue
        changed = _changed(f, row)
        if not _applies(changed, row):
            continue
        if "like" in row:
            return read_layers(changed, t, row["like"], n)
        return _layers(changed, t, row, n)
    return []


def _changed(f: Fields, row: _Row) -> Fields:
    """Returns the fields with a row's changes: ignored fields, defaults and named sections."""
    values = {k: v for k, v in f.values.items() if k not in row.get("ignores", ())}
    added = {k: v for k, v in row.get("absent", {}).items() if k not in values}
    added |= {k: v for k, v in row.get("defaults", {}).items() if values.get(k) is None}
    values |= added
    if "section" in row and (section := f.section(row["section"])):
        values |= {f"{row['section']}.{k}": v for k, v in section.values.items()}
    return Fields(values, f.problems, f.defaults | added.keys())


def _applies(f: Fields, row: _Row) -> bool:
    given = all(f.has(row[key]) for key in ("section", "has") if key in row)
    if not (given and _have_values(f, row.get("if", {}))):
        return False
    if "unless_class" in row and f.has("architectures"):
        return row["unless_class"] not in f.texts("architectures")
    return True


def _have_values(f: Fields, want: Mapping[str, bool | str]) -> bool:
    return all(
        (f.text(name) if isinstance(value, str) else f.flag(name)) == value
        for name, value in want.items()
    )


def _layers(f: Fields, t: Types, row: _Row, n: int) -> list[Layer]:
    for flag, why in row.get("refuses", {}).items():
        if f.flag(flag):
            f.problems.add(f"{flag}: {why}")
    kinds = {"none": Layer()}
    if "linear" in row:
        kinds["linear"] = _linear(f, t, row["linear"])
    if "attention" in row:
        kinds["full"] = full = _attention(f, t, row["attention"])
        if "window" in row["attention"]:
            rows = replace(full.attention, window=f.number(row["attention"]["window"]))
            kinds["window"] = Layer(Kind.WINDOW, rows)
    *others, last = row["layers"]
    rule = next((r for r in others if f.has(r.get("names") or r["at"])), last)
    return [kinds[name] for names in _kinds(f, rule, n) for name in names.split()]


def _size(f: Fields, text: str) -> int:
    *others, last = text.split(" | ")
    for name in others:
        if value := f.number_or(name, 0):
            return value
    size, divide = 1, False
    for term in last.split():
        if term in "*/":
            divide = term == "/"
        elif divide:
            size //= max(_term(f, term), 1)
        else:
            size *= _term(f, term)
    return size


def _term(f: Fields, text: str) -> int:
    if text.isdecimal():
        return int(text)
    return f.head_dim() if text == "attention_dim" else f.number(text)


def _linear(f: Fields, t: Types, row: _Row) -> Layer:
    """Returns a linear layer in terms of keys and values.

    In Mamba2, B is the key, x is the value, and the convolution runs over [x | B | C]. In Mamba1,
    every channel is a head with a value of size 1. A delta rule has a convolution over q, k and v.
    """
    if "family" not in row:
        conv = Conv(_size(f, row["kernel"]), (_size(f, row["channels"]),), t.conv)
        return Layer(Kind.CONV, linear=Linear(conv=conv))
    family = Family[row["family"].upper()]
    values = _named_size(f, "value_heads", row["value_heads"])
    keys = _named_size(f, "key_heads", row.get("key_heads", "value_heads"))
    key_dim = _named_size(f, "key_dim", row["key_dim"])
    value_dim = _value_dim(f, row, values)
    rope = _rope(f, row.get("rope"), key_dim)
    scalar = family.transition == Transition.SCALAR
    conv = Conv()
    if "kernel" in row:
        # If there are fewer key heads or groups than ranks, each rank has a copy of one.
        of_key, of_value = max(keys, t.tp_size) * key_dim, values * value_dim
        channels = {
            Family.MAMBA1: (of_value,),
            Family.MAMBA2: (of_value, of_key, of_key),
        }.get(family, (of_key, of_key, of_value))
        conv = Conv(_size(f, row["kernel"]), channels, t.conv)
    sizes = (keys, values, key_dim, value_dim)
    dtypes = (t.state, DType.F32 if scalar else t.transition)
    return Layer(Kind.LINEAR, linear=Linear(family, *sizes, *dtypes, conv, rope))


def _named_size(f: Fields, name: str, text: str) -> int:
    """Returns a size, and stores it for the sizes that depend on it."""
    f.values[name] = size = _size(f, text)
    return size


def _value_dim(f: Fields, row: _Row, heads: int) -> int:
    if "channels" not in row:
        return _size(f, row.get("value_dim", "key_dim"))
    if f.values.get(row["value_dim"], "auto") != "auto":
        return f.number(row["value_dim"])
    channels = _size(f, row["channels"])
    if heads >= 1 and channels % heads == 0:
        return channels // heads
    f.problems.add(
        f"{row['value_dim']}: not a number, and {channels} channels over {heads} heads do not give"
        " one"
    )
    return 1


def _attention(f: Fields, t: Types, row: _Row) -> Layer:
    """Returns a layer with latent or grouped-query attention."""
    if row.get("latent"):
        dim, rank = f.number("qk_rope_head_dim"), f.number("kv_lora_rank")
        rope = Rope()
        if "rope" in row and _have_values(f, row["rope"].get("if", {})):
            rope = replace(f.rope_over(dim), interleaved=True)
        return Layer(Kind.MLA, Attention(1, dim, rank, t.kv, KeyMode.AT_ZERO, rope))
    dim = _size(f, row.get("dim", "attention_dim"))
    rope = _rope(f, row.get("rope"), dim)
    heads = _size(f, "num_key_value_heads | num_attention_heads")
    _check_query_groups(f, heads)
    return Layer(Kind.FULL, Attention(heads, dim, dim, t.kv, KeyMode.AT_ZERO, rope))


def _check_query_groups(f: Fields, kv_heads: int) -> None:
    """Refuses attention heads that cannot be divided among the key-value heads."""
    heads = f.number_or("num_attention_heads", 0)
    if kv_heads >= 1 and heads % kv_heads:
        missing = "missing, and the default " if "num_key_value_heads" in f.defaults else ""
        f.problems.add(
            f"num_key_value_heads: {missing}{kv_heads} does not divide num_attention_heads, which"
            f" is {heads}"
        )


def _rope(f: Fields, row: _Row | None, dim: int) -> Rope:
    if row is None or not _have_values(f, row.get("if", {})):
        return Rope()
    if "off_if_null" in row:
        nested = f.section("rope_parameters")
        values = f.values | (nested.values if nested else {})
        if values.get(row["off_if_null"], 0) is None:
            return Rope()
    return f.rope(f.number_or(row["dims"], dim) if "dims" in row else dim)


def _kinds(f: Fields, rule: Mapping[str, Any], n: int) -> Sequence[str]:
    """Returns the names of kinds for each of `n` decoder layers."""
    match rule:
        case {"names": field}:
            return _named(f, field, f.texts(field), rule.get("of", _LAYER_NAMES), n)
        case {"letters": field, "of": of}:
            return _named(f, field, f.text(field), of, n)
        case {"numbers": field, "of": of}:
            return _named(f, field, [str(v) for v in f.numbers(field)], of, n)
        case {"every": size}:
            return _every_nth(f, size, rule, n)
        case {"one_of": lists}:
            return _one_of(f, lists, n)
        case {"until": field}:
            first = f.number(field)
            return ["full" if i < first else "window" for i in range(n)]
        case {"at": field}:
            return _at(f, field, n)
    return [rule["each"]] * n


def _named(
    f: Fields, field: str, texts: Sequence[str], of: Mapping[str, str], n: int
) -> Sequence[str]:
    if len(texts) != n:
        f.problems.add(f"{field}: {len(texts)} entries for {n} layers")
        return []
    for i, text in enumerate(texts):
        if text not in of:
            f.problems.add(
                f"{field}: {text!r} at layer {i} is not known, want one of {', '.join(sorted(of))}"
            )
    return [of.get(text, "none") for text in texts]


def _every_nth(f: Fields, size: str, rule: Mapping[str, str], n: int) -> Sequence[str]:
    group = _size(f, size)
    if group < 1:
        f.problems.add(f"{size}: {group}, want at least 1")
        return []
    offset = f.number(rule["offset"]) if "offset" in rule else group - 1
    whole, rest = n - n % group, rule.get("rest")
    if rest == "refused" and whole < n:
        f.problems.add(
            f"{size}: {group} of {n} layers, and engines differ in the layers behind the last group"
        )
    full = (i % group == offset or (i >= whole and rest == "full") for i in range(n))
    return ["full" if is_full else "linear" for is_full in full]


def _one_of(f: Fields, lists: Mapping[str, str], n: int) -> Sequence[str]:
    numbers = {kind: set(f.numbers(field)) for kind, field in lists.items()}
    for kind, listed in numbers.items():
        for i in sorted(listed - set(range(1, n + 1))):
            f.problems.add(f"{lists[kind]}: layer {i}, want 1 to {n}")
    out = []
    for i in range(1, n + 1):
        kinds = [kind for kind, listed in numbers.items() if i in listed]
        if len(kinds) != 1:
            f.problems.add(
                f"{', '.join(sorted(lists.values()))}: layer {i} is in {len(kinds)} of them,"
                " want one"
            )
        out.append(" ".join(kinds))
    return out


def _at(f: Fields, field: str, n: int) -> Sequence[str]:
    out = ["linear"] * n
    for i in f.numbers(field):
        if not 0 <= i < n:
            f.problems.add(f"{field}: layer {i}, want 0 to {n - 1}")
            return []
        out[i] = "full"
    return out
