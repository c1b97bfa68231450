"""Settings in `SPLICED_SGLANG`, for `--radix-cache-backend spliced`.

    SPLICED_SGLANG='{"socket": "/run/spliced/spliced.sock", "mode": "splice", "find": ["chunks"]}'

`@/etc/spliced/sglang.json` names a file with the settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from spliced_connector.serving.settings import ServingSettings

VARIABLE = "SPLICED_SGLANG"


@dataclass(frozen=True)
class SpliceSettings(ServingSettings):
    """Settings of one engine; the same for all its processes."""

    answers: bool = True
    """Whether the state after each answer is stored where the daemon wants it."""
    untested: bool = False
    """Whether to try releases of the engine, and devices, with which the connector never ran."""

    WHERE: ClassVar[str] = VARIABLE

    @classmethod
    def parse(cls, text: str, model: str) -> SpliceSettings:
        """Returns checked settings. Raises ValueError, which names all invalid settings.

        text: the value of the variable. model: the directory of the engine's model, which has the
        weights by default.
        """
        try:
            given = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text or "{}")
        except (OSError, ValueError) as err:
            raise ValueError(f"{VARIABLE}: {err}") from err
        if not isinstance(given, Mapping):
            raise ValueError(f"{VARIABLE}: a {type(given).__name__}, want an object")
        return cls.read({"weights": model, **given})
