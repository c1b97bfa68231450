"""Why a connector does nothing."""

from __future__ import annotations


class Inert(Exception):  # noqa: N818  (not a fault)
    """The connector does nothing for this engine. The text says why."""
