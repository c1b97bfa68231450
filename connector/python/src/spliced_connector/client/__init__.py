"""The client of the daemon: requests that an engine sends, and the leases that it holds.

`Client` keeps a connection to the daemon and connects again after the daemon has restarted.
`Client.model` returns a `Model`, which sends the requests for one model to whatever daemon is
attached. The package `connection` is one connection to one start of a daemon. The modules
`device_*` are about memory of the daemon's GPU. This package needs the standard library only.
"""

from spliced_connector.client.advise import (
    UNADVISED,
    Advice,
    CaptureTiming,
    CheckpointAdvice,
    Query,
    Sample,
    SegmentAdvice,
    WalkTiming,
    seam_tokens,
)
from spliced_connector.client.buffers import Buffer
from spliced_connector.client.client import Client
from spliced_connector.client.compute import Origin, Placed, Plan, PlanSpan
from spliced_connector.client.connection.counters import Counters
from spliced_connector.client.connection.options import DeviceOptions, Options, default_socket
from spliced_connector.client.device_attach import open_gpu
from spliced_connector.client.device_lease import (
    DeviceCheckpoint,
    DeviceSegment,
    DeviceSlot,
    release_after,
)
from spliced_connector.client.device_memory import DeviceMemory
from spliced_connector.client.device_releases import Passing
from spliced_connector.client.device_splice import Blocks, DeviceSpan, compose, place
from spliced_connector.client.engine_memory import EngineMemory, MemoryLayer, engine_memfd
from spliced_connector.client.known import MAX_PROMPT, KnownQuery, KnownSegment
from spliced_connector.client.lease import Checkpoint, Segment, Slot, release_all
from spliced_connector.client.losses import (
    ANY_LOSS,
    LossAdvice,
    LossCounts,
    Losses,
    LossLimit,
    SpliceWay,
    beyond_max_loss,
    unanswered,
)
from spliced_connector.client.match import PRIMED_DUE, PRIMED_KEY, Lookup, Match, misses
from spliced_connector.client.model import Model
from spliced_connector.client.parallel import (
    Assigned,
    Following,
    Job,
    JobNews,
    Missing,
    PlanNews,
    WorkPlan,
    plannable,
)
from spliced_connector.client.publish import NewCheckpoint, NewSegment
from spliced_connector.client.served import (
    Served,
    ServedSegment,
    served_bytes,
    served_segments,
    way_of,
)
from spliced_connector.client.terms import (
    Accept,
    Alone,
    Level,
    Reason,
    Splicing,
    Status,
    Tier,
    Verdict,
    Way,
    Why,
)
from spliced_connector.wire.numbers import MAX_BLOCKS

__all__ = [
    "ANY_LOSS",
    "MAX_BLOCKS",
    "MAX_PROMPT",
    "PRIMED_DUE",
    "PRIMED_KEY",
    "UNADVISED",
    "Accept",
    "Advice",
    "Alone",
    "Assigned",
    "Blocks",
    "Buffer",
    "CaptureTiming",
    "Checkpoint",
    "CheckpointAdvice",
    "Client",
    "Counters",
    "DeviceCheckpoint",
    "DeviceMemory",
    "DeviceOptions",
    "DeviceSegment",
    "DeviceSlot",
    "DeviceSpan",
    "EngineMemory",
    "Following",
    "Job",
    "JobNews",
    "KnownQuery",
    "KnownSegment",
    "Level",
    "Lookup",
    "LossAdvice",
    "LossCounts",
    "LossLimit",
    "Losses",
    "Match",
    "MemoryLayer",
    "Missing",
    "Model",
    "NewCheckpoint",
    "NewSegment",
    "Options",
    "Origin",
    "Passing",
    "Placed",
    "Plan",
    "PlanNews",
    "PlanSpan",
    "Query",
    "Reason",
    "Sample",
    "Segment",
    "SegmentAdvice",
    "Served",
    "ServedSegment",
    "Slot",
    "SpliceWay",
    "Splicing",
    "Status",
    "Tier",
    "Verdict",
    "WalkTiming",
    "Way",
    "Why",
    "WorkPlan",
    "beyond_max_loss",
    "compose",
    "default_socket",
    "engine_memfd",
    "misses",
    "open_gpu",
    "place",
    "plannable",
    "release_after",
    "release_all",
    "seam_tokens",
    "served_bytes",
    "served_segments",
    "unanswered",
    "way_of",
]
