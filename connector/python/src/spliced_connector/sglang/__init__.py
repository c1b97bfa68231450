"""The storage tier of SGLang's HiCache: `"module_path": "spliced_connector.sglang"`."""

from typing import TYPE_CHECKING

from spliced_connector.lazy import attribute

if TYPE_CHECKING:
    from spliced_connector.sglang.backend import SplicedHiCache

__all__ = [
    "SplicedHiCache",
]

_MODULES = {
    "backend": "SplicedHiCache",
}


def __getattr__(name: str) -> object:
    return attribute(__name__, _MODULES, name)
