"""The former name of `spliced_connector.sglang`, used in settings of running engines."""

from spliced_connector.sglang.backend import SplicedHiCache

__all__ = ["SplicedHiCache"]
