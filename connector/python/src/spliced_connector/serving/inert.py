"""Why a connector does nothing."""

from __future__ import annotations


class Inert(Exception):  # noqa: N818  (not a fault)
    """Why the connector does nothing for this engine."""
