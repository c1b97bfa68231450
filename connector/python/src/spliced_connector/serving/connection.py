"""An engine's connection to the daemon."""

from __future__ import annotations

from spliced_connector.client import Client, Options
from spliced_connector.serving.settings import ServingSettings


def connect(settings: ServingSettings, engine: str) -> Client:
    """Returns a client. It never waits and never raises for a missing daemon.

    engine: name and release of the engine, for the daemon's list of connections.
    """
    seconds = settings.timeout_ms / 1000
    return Client(
        Options(
            socket=settings.socket,
            daemon_uid=settings.daemon_uid if settings.daemon_uid >= 0 else None,
            name=engine,
            tenants=((settings.tenant, settings.token),),
            timeout=seconds,
            transfer_timeout=max(2.0, seconds),  # for messages that the engine does not wait for
        )
    )
