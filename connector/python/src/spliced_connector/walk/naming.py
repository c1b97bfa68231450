"""The parts of an identity that do not follow from a model's modules."""

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
    """The fields of an identity that a model's modules do not determine.

    weights is the digest of the weights only, 32 bytes. If `model` is empty, the identity has the
    config's model_type instead. state is the element type of stored S; transition is the element
    type of stored T, unless T is scalar. tolerance is the error that the daemon may add to S and T;
    row_tolerance is the error that it may add to keys and values (see `Identity`).
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
    """Returns the element type in which rows of a model's dtype are stored."""
    return _STORED[dtype]
