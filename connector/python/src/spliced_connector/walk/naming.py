"""What an identity says that a model's modules do not."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spliced_connector.model import DEFAULT_TOLERANCE, DType

_STORED = {
    torch.float64: DType.F32,
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
}


@dataclass(frozen=True, slots=True)
class Naming:
    """The rest of an identity. weights is the digest of the weights alone, 32 bytes.

    An empty model takes the config's model_type. state and transition are the element types of
    S and of a T that is not scalar, tolerance is how far the daemon may move them, row_tolerance is
    that of keys and values: see Identity.
    """

    weights: bytes
    model: str = ""
    adapter: str = ""
    tokenizer: str = ""
    state: DType = DType.F32
    transition: DType = DType.F16
    tolerance: float = DEFAULT_TOLERANCE
    row_tolerance: float = 0.0


def stored(dtype: torch.dtype) -> DType:
    """The element type that rows of a model's dtype are stored in."""
    return _STORED[dtype]
