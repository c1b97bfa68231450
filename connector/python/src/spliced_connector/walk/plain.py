"""Checks that a model consists only of the modules of its class.

A walk reads weights of some modules and calls others, and an identity names the weights that were
loaded. Adapters, quantised layers and hooks change values, but the walk and the identity would
miss them. So a model that has any of them is refused. Replacing a method of a class by assignment
is not detected.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from spliced_connector.walk.reading import UnsupportedError

_TORCH = frozenset(
    {
        nn.Linear,
        nn.Conv1d,
        nn.Embedding,
        nn.Identity,
        nn.SiLU,
        nn.ModuleList,
        nn.Sequential,
    }
)
_OWN = ("transformers.models.", "transformers.activations")
_BROUGHT = "transformers_modules."
"""Prefix of the packages into which transformers imports code that comes with a model's weights."""
_KNOWN = frozenset({"bailing_hybrid", "bailing_moe_linear"})
"""Model types that come with their own code and whose arithmetic a walk implements."""
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_READS_ONLY = "transformers.utils.output_capturing"
"""Module of transformers whose hooks are permitted: they only collect the outputs of modules. They
stay registered after their first use."""


def require_plain(model: nn.Module) -> None:
    """Raises `UnsupportedError` if `altered` finds a change of the model; the text names it."""
    why = altered(model)
    if why:
        raise UnsupportedError(why)


def altered(model: nn.Module) -> str:
    """Returns what changes the model's values in addition to its weights and config; empty if
    nothing does.

    Visits every module once, so that it can be called before each request.
    """
    if getattr(model, "_hf_peft_config_loaded", False) or getattr(model, "peft_config", None):
        return "the model has adapters (peft_config)"
    if getattr(model, "hf_quantizer", None) is not None:
        return "the model is quantised (hf_quantizer)"
    if getattr(getattr(model, "config", None), "quantization_config", None) is not None:
        return "the model is quantised (quantization_config)"
    own = _own(model)
    for name, module, inside in _modules(model):
        why = _odd(module, inside, own)
        if why:
            return f"{name or 'the model'} {why}"
    return ""


def _own(model: nn.Module) -> tuple[str, ...]:
    """Returns the prefixes of the packages that a model's classes may come from."""
    package = type(model).__module__.rpartition(".")[0]
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if package.startswith(_BROUGHT) and kind in _KNOWN:
        return (*_OWN, f"{package}.")
    return _OWN


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Module | None]]:
    """Yields every module with its path and its parent."""
    todo: list[tuple[str, nn.Module, nn.Module | None]] = [("", model, None)]
    while todo:
        name, module, inside = todo.pop()
        yield name, module, inside
        for key, part in module._modules.items():
            if part is not None:
                todo.append((f"{name}.{key}" if name else key, part, module))


def _odd(module: nn.Module, inside: nn.Module | None, own: tuple[str, ...]) -> str:
    kind = type(module)
    if kind not in _TORCH and not kind.__module__.startswith(own):
        return f"is a {kind.__module__}.{kind.__qualname__}, which no walk supports"
    # The code of some models in transformers includes low-rank adapters, each a Sequential in a
    # ModuleList. Any other Sequential was put in place of a projection by other code.
    if kind is nn.Sequential and type(inside) is not nn.ModuleList:
        return "is a Sequential, which no walk supports"
    if "forward" in module.__dict__:
        return "has another forward than its class"
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    if any(getattr(hook, "__module__", "") != _READS_ONLY for hook in hooks):
        return "has forward hooks"
    for name, weight in module._parameters.items():
        if weight is not None and type(weight) is not nn.Parameter:
            return f"keeps {name} as a {type(weight).__name__}"
        if weight is not None and weight.dtype not in _DTYPES:
            return f"keeps {name} in {weight.dtype}"
    return ""
