"""Reuse of segments and prefixes in transformers: `SplicedTransformers` around a model."""

from typing import TYPE_CHECKING

from spliced_connector.lazy import attribute

if TYPE_CHECKING:
    from spliced_connector.hf.adapter import HFSettings, Prefilled, SplicedTransformers
    from spliced_connector.hf.decode import Decoded, Drafter, PromptLookup

__all__ = [
    "Decoded",
    "Drafter",
    "HFSettings",
    "Prefilled",
    "PromptLookup",
    "SplicedTransformers",
]

_MODULES = {
    "adapter": "HFSettings Prefilled SplicedTransformers",
    "decode": "Decoded Drafter PromptLookup",
}


def __getattr__(name: str) -> object:
    return attribute(__name__, _MODULES, name)
