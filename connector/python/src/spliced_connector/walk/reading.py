"""Reading an engine's modules and settings by name.

If a model lacks a required module, or has a setting whose arithmetic is not implemented here, the
functions raise `UnsupportedError`. It names the module or setting, so that a connector can report
why it stays inactive.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class UnsupportedError(ValueError):
    """A model whose state cannot be reused; the text names the missing module or setting."""


def child(module: nn.Module, name: str) -> nn.Module:
    """Returns the submodule at a dotted path."""
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, nn.Module):
        raise UnsupportedError(f"{type(module).__name__}: no module {name!r}")
    return found


def maybe_child(module: nn.Module, name: str) -> nn.Module | None:
    """Returns a submodule that may be absent or None."""
    found = getattr(module, name, None)
    return found if isinstance(found, nn.Module) else None


def layers(module: nn.Module, name: str = "layers") -> Sequence[nn.Module]:
    """Returns the decoder layers of a model."""
    return list(child(module, name).children())


def tensor(module: nn.Module, name: str) -> Tensor:
    """Returns a parameter or buffer of a module."""
    found = getattr(module, name, None)
    if not isinstance(found, Tensor):
        raise UnsupportedError(f"{type(module).__name__}: no tensor {name!r}")
    return found.detach()


def plain_weight(module: nn.Module, name: str) -> Tensor:
    """Returns the weight matrix of a linear submodule, which must be unquantised."""
    weight = tensor(child(module, name), "weight")
    if not weight.is_floating_point() or weight.dtype.itemsize < 2:
        raise UnsupportedError(f"{type(module).__name__}: {name} is quantised ({weight.dtype})")
    return weight


def conv_weight(conv: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Returns weight [channels, kernel] and bias [channels] of a depthwise convolution."""
    bias = getattr(conv, "bias", None)
    return tensor(conv, "weight").squeeze(1), bias.detach() if isinstance(bias, Tensor) else None


def number(config: object, name: str) -> int:
    """Returns a whole number of the config."""
    value = getattr(config, name, None)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnsupportedError(f"config: {name} is {value!r}, want a whole number")
    return value


def real(config: object, name: str) -> float:
    """Returns a number of the config, or of a module."""
    value = getattr(config, name, None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedError(f"config: {name} is {value!r}, want a number")
    return float(value)


def names(config: object, name: str) -> Sequence[str]:
    """Returns a list of words of the config, such as the layers' types."""
    value = getattr(config, name, None)
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise UnsupportedError(f"config: {name} is {value!r}, want a list of names")
    return list(value)


def whole_numbers(config: object, name: str) -> Sequence[int]:
    """Returns a list of whole numbers of the config."""
    value = getattr(config, name, None)
    if not isinstance(value, list | tuple) or not all(isinstance(v, int) for v in value):
        raise UnsupportedError(f"config: {name} is {value!r}, want a list of whole numbers")
    return list(value)


def flag(config: object, name: str, default: bool = False) -> bool:
    """Returns a switch of the config."""
    value = getattr(config, name, default)
    return default if value is None else bool(value)


def require_silu(config: object, name: str = "hidden_act") -> None:
    """Raises UnsupportedError unless the activation after the convolution is SiLU."""
    value = getattr(config, name, None)
    if value not in ("silu", "swish"):
        raise UnsupportedError(f"config: {name} is {value!r}, want silu after the convolution")


def head_dim(config: object) -> int:
    """Returns head_dim, or the hidden size over the heads if a config leaves it out."""
    value = getattr(config, "head_dim", None)
    if isinstance(value, int):
        return value
    hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    if hidden % heads:
        raise UnsupportedError(f"config: hidden_size {hidden} over {heads} heads gives no head_dim")
    return hidden // heads


def float_dtype(module: nn.Module) -> torch.dtype:
    """Returns the dtype in which a model computes. module: the model's embedding."""
    dtype = tensor(module, "weight").dtype
    if dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        raise UnsupportedError(f"model dtype {dtype} is not one that segments are stored in")
    return dtype
