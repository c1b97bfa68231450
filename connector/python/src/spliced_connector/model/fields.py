"""Reads named values of a config, and records each one that is missing or has another type."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import TypeGuard, TypeVar

from spliced_connector.model.identity import MAX_DIM, Rope
from spliced_connector.model.validate import Problems

T = TypeVar("T")

FLOAT_TAG = "__float__"
"""Newer config files write an infinity or NaN as an object with only this key."""

MUST_SAY = 0.0
"""The default of a rope base that a config must have."""


class Fields:
    """Reads one JSON object. For a value that cannot be read, methods return zero and add a
    problem. `defaults` names the values that are not from the config."""

    def __init__(
        self,
        values: Mapping[str, object],
        problems: Problems,
        defaults: frozenset[str] = frozenset(),
    ) -> None:
        self.values = dict(values)
        self.problems = problems
        self.defaults = defaults

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def number(self, name: str) -> int:
        value = self._value(name)
        return value if _is_number(value) else self._wrong(name, value, "a whole number", 0)

    def number_or(self, name: str, default: int) -> int:
        return self.number(name) if self.has(name) else default

    def real(self, name: str) -> float:
        value = self._value(name)
        if _is_number(value) or (isinstance(value, float) and math.isfinite(value)):
            return float(value)
        return self._wrong(name, value, "a number", 0.0)

    def real_or(self, name: str, default: float) -> float:
        return self.real(name) if self.has(name) else default

    def flag(self, name: str) -> bool:
        if not self.has(name):
            return False
        value = self._value(name)
        return value if isinstance(value, bool) else self._wrong(name, value, "a flag", False)

    def text(self, name: str) -> str:
        value = self._value(name)
        return value if isinstance(value, str) else self._wrong(name, value, "a text", "")

    def text_or(self, name: str, default: str) -> str:
        return self.text(name) if self.has(name) else default

    def numbers(self, name: str) -> list[int]:
        value = self._value(name)
        if isinstance(value, list | tuple) and all(map(_is_number, value)):
            return list(value)
        return self._wrong(name, value, "a list of whole numbers", [])

    def texts(self, name: str) -> list[str]:
        value = self._value(name)
        if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value):
            return list(value)
        return self._wrong(name, value, "a list of texts", [])

    def section(self, name: str) -> Fields | None:
        if not self.has(name):
            return None
        value = self._value(name)
        if isinstance(value, Mapping) and FLOAT_TAG not in value:
            return Fields(value, self.problems)
        return self._wrong(name, value, "an object", None)

    def text_model(self, model_type: str) -> tuple[Fields, str]:
        """Returns the text model's config inside that of a multimodal model, and its model_type.

        If the text model's config has no type, `model_type` is returned as its type. If no config
        is nested, the whole config and `model_type` are returned.
        """
        text = self.section("text_config") or self.section("llm_config")
        return (
            (self, model_type) if text is None else (text, text.text_or("model_type", model_type))
        )

    def layers(self) -> int:
        """Returns the number of decoder layers.

        Nemotron-H configs that transformers 5 writes only have a list with a name per layer.
        """
        if not self.has("num_hidden_layers") and self.has("layers_block_type"):
            return len(self.texts("layers_block_type"))
        return self.number("num_hidden_layers")

    def head_dim(self) -> int:
        """Returns the size of a head. If it is missing, it is hidden size / heads."""
        if self.has("head_dim"):
            return self.number("head_dim")
        hidden, heads = self.number("hidden_size"), self.number("num_attention_heads")
        if heads < 1 or hidden % heads:
            self.problems.add(
                f"head_dim: missing, and hidden_size {hidden} over {heads} heads does not tell"
            )
            return 1
        return hidden // heads

    def rope(self, dim: int) -> Rope:
        """Returns the rotary embedding (NeoX order) over a share of `dim`, by default all.

        Base and share are read from rope_parameters or from the older top-level fields.
        """
        dims = cut_off(dim * self._rope_real("partial_rotary_factor", 1.0))
        return self.rope_over(self.number("rotary_dim") if self.has("rotary_dim") else dims)

    def rope_over(self, dims: float) -> Rope:
        """Returns the rotary embedding over `dims` dimensions, regardless of the share in the
        config."""
        theta = self._rope_real("rope_theta", 1e4)
        if theta == MUST_SAY:
            self.problems.add("rope_theta: missing")
        if not 0 <= dims <= MAX_DIM:
            self.problems.add(f"rope turns {dims:.0f} dimensions, want 0 to {MAX_DIM}")
            return Rope()
        source = self
        for name in ("rope_parameters", "rope_scaling"):
            source = self.section(name) or source
        return source._scaled(Rope(int(dims), theta))

    def _rope_real(self, name: str, default: float) -> float:
        """Returns a value of rope_parameters, else the older top-level field, else the default."""
        nested = self.section("rope_parameters")
        return (nested if nested and nested.has(name) else self).real_or(name, default)

    def _scaled(self, rope: Rope) -> Rope:
        """Applies a scaling that only changes frequencies; any other scaling is a problem."""
        kind = self.text_or("rope_type", self.text_or("type", "default"))
        if kind == "default":
            return rope
        if kind == "linear":
            factor = self.real("factor")
            return self._rescaled(rope, lambda freq: freq / factor)
        if kind == "llama3":
            factor, low = self.real("factor"), self.real("low_freq_factor")
            high, context = (
                self.real("high_freq_factor"),
                self.real("original_max_position_embeddings"),
            )
            return self._rescaled(rope, lambda freq: llama3_freq(freq, factor, low, high, context))
        self.problems.add(f"rope scaling {kind!r} is not supported, want default, linear or llama3")
        return rope

    def _rescaled(self, rope: Rope, turn: Callable[[float], float]) -> Rope:
        # Frequencies are rounded to F32, as engines store them. Math libraries differ in the last
        # bits of a power, and identities must not.
        if self.problems.texts:
            return rope  # its scaling parameters may be missing
        try:
            freqs = [turn(rope.theta ** (-2 * i / rope.dims)) for i in range(rope.dims // 2)]
            inv_freq = struct.unpack(f"<{len(freqs)}f", struct.pack(f"<{len(freqs)}f", *freqs))
        except (ArithmeticError, TypeError, struct.error) as err:
            self.problems.add(f"rope scaling: {err}")
            return Rope()
        return Rope(rope.dims, 0.0, rope.interleaved, inv_freq)

    def _value(self, name: str) -> object:
        return self.values.get(name)

    def _wrong(self, name: str, value: object, want: str, zero: T) -> T:
        problem = "missing" if value is None else f"{value!r} is not {want}"
        self.problems.add(f"{name}: {problem[:200]}")
        return zero


def llama3_freq(freq: float, factor: float, low: float, high: float, context: float) -> float:
    """Scales a rope frequency as Llama 3 does: it keeps frequencies of short wavelengths, divides
    those of long wavelengths by `factor`, and interpolates between."""
    turns = context * freq / (2 * math.pi)
    if turns < low:
        return freq / factor
    if turns > high:
        return freq
    blend = (turns - low) / (high - low)
    return (1 - blend) * freq / factor + blend * freq


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def cut_off(value: float) -> float:
    """Truncates a value, as engines do with a share of a head. Keeps infinity and NaN."""
    return float(math.trunc(value)) if math.isfinite(value) else value
