"""Maps the engine's caches to layers of a profile.

Engines name a cache after the decoder layer that contains it. Models with two mixers in a decoder
layer are an exception: the profile has a layer for each mixer, and names are numbered differently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from spliced_connector.errors import ProfileError

Config = Mapping[str, object]


def place(name: str, states: bool, config: Config) -> int:
    """Returns the number of the profile's layer for the cache with this name.

    states: whether the cache has recurrent states. Raises ProfileError if the name cannot be
    mapped.
    """
    numbers = re.findall(r"(?<=\.)\d+(?=\.)", f".{name}.")
    if len(numbers) != 1:
        raise ProfileError(f"layer {name!r}: cannot determine its number")
    return _PLACES.get(str(config.get("model_type")), _plain)(int(numbers[0]), states, config)


def _plain(number: int, states: bool, config: Config) -> int:
    return number


def _falcon_h1(number: int, states: bool, config: Config) -> int:
    """The first layer of each pair is Mamba2. Names of attention are numbered from 0 on, names of
    Mamba2 after those of attention."""
    return 2 * (number - _number(config, "num_hidden_layers")) if states else 2 * number + 1


def _zamba2(number: int, states: bool, config: Config) -> int:
    """In decoder layers that have both attention and Mamba2, attention comes first.

    Let n be the number of these layers. Names of Mamba2 are numbered from n on. There are
    `num_mem_blocks` attention blocks; each serves every `num_mem_blocks`-th of these layers.
    Attention names are numbered block by block.
    """
    kinds = config.get("layers_block_type")
    both = [
        i for i, kind in enumerate(kinds if isinstance(kinds, list) else ()) if kind == "hybrid"
    ]
    if states:
        layer = number - len(both)
        return layer + sum(i <= layer for i in both)
    blocks = _number(config, "num_mem_blocks")
    for block in range(blocks):
        first = block * (len(both) + blocks - 1) // blocks
        for nth, i in enumerate(range(block, len(both), blocks)):
            if first + nth == number:
                return both[i] + i
    raise ProfileError(f"attention {number} belongs to no layer")


def _number(config: Config, name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ProfileError(f"{name}: {value!r}, want a number")
    return value


_PLACES: Mapping[str, Callable[[int, bool, Config], int]] = {
    "falcon_h1": _falcon_h1,
    "zamba2": _zamba2,
}
"""The exceptions, by model_type."""
