"""The daemon's counters and gauges."""

from __future__ import annotations

import time

from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.connection.flight import Call, Late
from spliced_connector.wire import Op, StatsReply, StatsRequest


def figures(attachment: Attachment, seconds: float) -> dict[str, float]:
    """Requests the counters and gauges; the timeout is `seconds`. Raises `SplicedError`."""
    call = Call(Op.STATS, time.monotonic() + seconds, Late())
    reply = attachment.exchange.request(call, StatsRequest(), StatsReply)
    return dict(zip(reply.names, reply.values, strict=True))


def pools(counters: dict[str, float]) -> str:
    """Returns how full both pools are, for a log line; empty if no counter says so."""
    lines = []
    for name in ("public", "private"):
        used = counters.get(f"pool_{name}_used_bytes")
        most = counters.get(f"pool_{name}_capacity_bytes")
        if used is not None and most is not None:
            lines.append(f"{used / 2**20:.1f} of {most / 2**20:.1f} MiB in use in the {name} pool")
    return ", ".join(lines)
