"""Checks whether the library's single-token steps leave the same states as a prefill.

A step is another function than a prefill, and may have other arithmetic: MiniMax rounds its state
to the model's type at each token, and Mamba2's step ignores `time_step_limit`. In such a model, a
prefill of prompt and answer does not give the state that the answer's steps leave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spliced_connector.hf.cache import filled, read_back
from spliced_connector.hf.forward import step
from spliced_connector.model import Kind
from spliced_connector.walk import Architecture, Blocks, Context, advance_mixers, prefill

_PROMPT = 16
_STEPS = 32
"""Number of tokens of a comparison."""

_BOUND = 2.5
"""The allowed error in multiples of the type's epsilon; it allows for two roundings. Measured on
tiny models in bf16 and fp16: up to 1.4 if a step rounds only its inputs, from 3.7 if it rounds the
state."""

_LEAST = 1e-4
"""The allowed error is never below this value, which applies to float32 and float64. Sums in
float32 in another order are off by 1e-6."""


def unlike_prefill(model: PreTrainedModel, arch: Architecture) -> str:
    """Returns why single-token steps leave other states than a prefill, "" if they do not.

    Steps of `_STEPS` tokens are compared with the walk's recurrence over the same rows of each
    mixer, so that rounding in earlier layers does not count.
    """
    try:
        return _compared(model, arch)
    except Exception as err:  # a model's own code may raise anything
        return f"steps cannot be compared with a prefill: {type(err).__name__}: {err}"


def _compared(model: PreTrainedModel, arch: Architecture) -> str:
    layers = [i for i, kind in enumerate(arch.layers) if kind == Kind.LINEAR]
    if not layers:
        return ""
    if not isinstance(arch, Blocks):
        return "steps cannot be compared with a prefill: the mixers' modules are not known"
    room = _PROMPT + _STEPS
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(vocabulary, (room,), generator=generator).to(model.device)
    with torch.no_grad():
        before = Context(arch, room, model.device)
        prefill(arch, ids[:_PROMPT], before)
        cache, after = filled(model, arch, before), before.snapshot()
        read: dict[int, list[Tensor]] = {layer: [] for layer in layers}
        hooks = [
            module.register_forward_pre_hook(_keeper(read[layer]), with_kwargs=True)
            for layer, module in arch.linear_modules.items()
        ]
        try:
            for at in range(_PROMPT, room):
                step(model, cache, ids[at : at + 1], at)
        finally:
            for hook in hooks:
                hook.remove()
        read_back(model, arch, cache, after)
        rows = {layer: torch.cat(found) for layer, found in read.items()}
        advance_mixers(arch, ids.tolist(), before, rows)
    most = bound(arch.dtype)
    for layer in layers:
        got, want = after.layers[layer], before.layers[layer]
        for name, a, b in (("state", got.state, want.state), ("conv", got.conv, want.conv)):
            if a is None or b is None:
                continue
            error = apart(a, b)
            if not error <= most:  # NaN is not
                return (
                    f"the {name} of layer {layer} after {_STEPS} steps of one token is off by"
                    f" {error:.1e} from a prefill's, rounding by less than {most:.1e}"
                )
    return ""


def _keeper(
    rows: list[Tensor],
) -> Callable[[nn.Module, tuple[object, ...], dict[str, object]], None]:
    """Returns a hook that records the input of a mixer."""

    def keep(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        x = cast(Tensor, kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])
        rows.append(x[0].clone())

    return keep


def bound(dtype: torch.dtype) -> float:
    """Returns by how much states of a model in this type may differ because of rounding."""
    return max(_BOUND * float(torch.finfo(dtype).eps), _LEAST)


def apart(a: Tensor, b: Tensor) -> float:
    """Returns the root mean square over heads of the error of a, relative to b in each head. So it
    detects a single head that decays by another rule, even if that head's state is small."""
    wide, want = a.double().flatten(1), b.double().flatten(1)
    each = (wide - want).norm(dim=1) / want.norm(dim=1).clamp_min(1e-30)
    return float(each.square().mean().sqrt())
