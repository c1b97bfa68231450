"""What `spliced_connector.sglang` was called: settings of running engines name it."""

from spliced_connector.sglang.backend import SplicedHiCache

__all__ = ["SplicedHiCache"]
