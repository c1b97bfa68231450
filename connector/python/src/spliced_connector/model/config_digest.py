"""Mixes a config into the digest of the weights.

The same weights with another config, such as another epsilon or number of experts, compute other
states. An identity has only the shapes of layers, so all other settings are mixed into the digest
here, except those that are known not to change the states.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from spliced_connector.errors import ProfileError
from spliced_connector.model.fields import FLOAT_TAG

_HEADER = b"spliced weights and config\0"

_OF_NO_EFFECT = frozenset(
    {
        # The origin of a model and how it is loaded. Element types are mixed in separately.
        "architectures",
        "attn_implementation",
        "auto_map",
        "dtype",
        "torch_dtype",
        "transformers_version",
        # Used by training only.
        "attention_dropout",
        "dropout",
        "hidden_dropout",
        "initializer_range",
        # How results are returned.
        "chunk_size_feed_forward",
        "return_dict",
        "use_cache",
        # Parts after the states: labels and the head.
        "id2label",
        "is_encoder_decoder",
        "label2id",
        "num_labels",
        "problem_type",
        "pruned_heads",
        "tie_word_embeddings",
    }
)


def identity_digest(
    weights: bytes, config: Mapping[str, object], computed: str, state: str = "float32"
) -> bytes:
    """Returns `Identity.weights`: the digest of the weights, the config and the computed types.

    `config` is the content of a config.json, or the dictionary that transformers makes of it. The
    two give different digests, because the second one includes defaults. Of a multimodal model only
    the text part counts. `computed` is the element type of hidden rows and `state` that of running
    states, such as "bfloat16". A setting that is None counts as absent, and 1.0 as 1.

        SHA-256("spliced weights and config\\0" | weights | computed | 0 | state | 0 | JSON)

    If `weights` is not a digest (32 zeros, or another length), it is returned unchanged, and
    `Profile` refuses it. Raises `ProfileError` for a config value that is not plain data.
    """
    if len(weights) != 32 or not any(weights):
        return weights
    nested = (config.get(name) for name in ("text_config", "llm_config"))
    text = next((part for part in nested if isinstance(part, Mapping)), config)
    values = _plain(text, "config", top=True)
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    sha = hashlib.sha256(_HEADER + weights)
    for part in (computed, state):
        sha.update(part.removeprefix("torch.").encode() + b"\0")
    sha.update(canonical.encode())
    return sha.digest()


def _plain(value: object, name: str, *, top: bool = False) -> object:
    """Returns the value in a canonical form: equal settings give equal JSON."""
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        if set(value) == {FLOAT_TAG}:
            return _plain(float(str(value[FLOAT_TAG])), name)
        return {
            str(key): _plain(entry, f"{name}.{key}")
            for key, entry in value.items()
            if entry is not None and not (top and _ignored(str(key)))
        }
    if isinstance(value, list | tuple):
        return [_plain(entry, name) for entry in value]
    raise ProfileError(f"{name} is a {type(value).__name__}, which cannot be named")


def _ignored(key: str) -> bool:
    return key in _OF_NO_EFFECT or key.startswith(("_", "output_")) or key.endswith("_token_id")
