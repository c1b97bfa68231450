"""Reuse of segments and prefixes in transformers: `SplicedTransformers` around a model."""

from typing import TYPE_CHECKING

from spliced_connector.lazy import attribute

if TYPE_CHECKING:
    from spliced_connector.hf.adapter import HFSettings, Prefilled, SplicedTransformers

__all__ = [
    "HFSettings",
    "Prefilled",
    "SplicedTransformers",
]

_MODULES = {
    "adapter": "HFSettings Prefilled SplicedTransformers",
}


def __getattr__(name: str) -> object:
    return attribute(__name__, _MODULES, name)
