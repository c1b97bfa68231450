"""Client of the spliced cache daemon.

Importing this package needs the standard library only: no engine, no torch.
"""

from spliced_connector.errors import Code, ProfileError, SplicedError, WireError
from spliced_connector.keys import prefix_hashes, segment_key
from spliced_connector.profile import Identity, Profile, SegmentSpec

__all__ = [
    "Code",
    "Identity",
    "Profile",
    "ProfileError",
    "SegmentSpec",
    "SplicedError",
    "WireError",
    "prefix_hashes",
    "segment_key",
]

__version__ = "0.1.0"
