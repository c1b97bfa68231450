"""Client of the spliced cache daemon.

Importing this package needs the standard library only: no engine, no torch.
"""

from spliced_connector.errors import Code, ProfileError, SplicedError, WireError
from spliced_connector.model import (
    Identity,
    Profile,
    SegmentSpec,
    from_config,
    prefix_hashes,
    segment_key,
    weights_digest,
)
from spliced_connector.segments import cuts

__all__ = [
    "Code",
    "Identity",
    "Profile",
    "ProfileError",
    "SegmentSpec",
    "SplicedError",
    "WireError",
    "cuts",
    "from_config",
    "prefix_hashes",
    "segment_key",
    "weights_digest",
]

__version__ = "0.1.0"
