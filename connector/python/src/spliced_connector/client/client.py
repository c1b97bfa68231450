"""The client of the daemon: one connection that survives restarts of the daemon.

The client runs inside an engine. Every call has a timeout. If the daemon is dead or slow, the call
returns a miss and raises nothing. A background thread attaches to the daemon, and again after a
restart; meanwhile calls fail at once. State changes are logged to the logger "spliced", one line
each; everything else is only counted.

    client = Client(Options(socket=path, name="engine 1.0"))
    model = client.model(identity, block_tokens=16)
    found = model.match(positions, prefixes, keys)
    for segment in model.acquire(keys):
        ...
        if segment is not None and segment.release():
            ...  # what was copied out of it is valid

Memory: segments, checkpoints and slots give views of memory that the daemon owns, mapped here for
reading. Bytes read from them are valid only if `release` returns True.

A forked child has no connection: all its calls are misses. It may create its own client.
"""

from __future__ import annotations

import weakref

from spliced_connector.client.connection.counters import Counters
from spliced_connector.client.connection.options import Options
from spliced_connector.client.connection.stats import figures
from spliced_connector.client.device_memory import DeviceMemory, device_of
from spliced_connector.client.engine_memory import EngineMemory
from spliced_connector.client.keeper import Keeper
from spliced_connector.client.model import Model
from spliced_connector.client.registration import Enrolment
from spliced_connector.errors import SplicedError
from spliced_connector.gpu import DeviceEngineMemory
from spliced_connector.model import Identity, Profile

_MARGIN = 0.1  # seconds for the thread to report the result of the first attempt


class Client:
    """A connection to the daemon. All methods may be called concurrently.

    The constructor waits for one attempt to attach, at most `Options.attach_timeout`. Further
    attempts run in the background, so a missing daemon is not an error.
    """

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008
        self.options = options
        self._keeper = Keeper(options)
        self._finalizer = weakref.finalize(self, self._keeper.abandon)
        self._keeper.wait_tried(options.attach_timeout + _MARGIN)

    def model(
        self,
        identity: Identity | Profile,
        tenant: str = "",
        *,
        rank: int = 0,
        block_tokens: int = 0,
        connector: str = "",
        engine: str = "",
        memory: EngineMemory | DeviceEngineMemory | None = None,
    ) -> Model:
        """Returns a model for one tenant and rank, registered at every daemon that is attached.

        `tenant` is a name in `Options.tenants`. If it is empty and no tenant has the empty name,
        the first tenant is used. `connector` and `engine` are names and versions, shown to people.
        `Model.place` makes the daemon write to `memory`; memory on a GPU is registered once the
        daemon's GPU memory is attached. Raises `ProfileError` or ValueError for arguments that can
        never be valid. A client has at most 64 models.
        """
        profile = identity if isinstance(identity, Profile) else Profile(identity)
        enrolment = Enrolment(
            profile,
            self._tenant(tenant),
            rank,
            block_tokens=block_tokens,
            connector=connector,
            engine=engine,
            memory=memory,
        )
        try:
            self._keeper.enrol(enrolment)
        except ValueError:
            enrolment.close()
            raise
        return Model(self._keeper, enrolment, self)

    def _tenant(self, name: str) -> int:
        names = [tenant for tenant, _ in self.options.tenants]
        if name not in names and name:
            raise ValueError(f"tenant {name!r} is not among the client's")
        return names.index(name) if name in names else 0

    @property
    def attached(self) -> bool:
        """Returns whether a daemon is attached now."""
        current = self._keeper.current
        return current is not None and not current.ended and not self._keeper.inert

    def wait_attached(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until a daemon is attached. Returns whether one is. An
        engine need not wait: without a daemon its calls return misses."""
        keeper = self._keeper
        if keeper.inert:
            return False
        with keeper.changed:
            keeper.changed.wait_for(lambda: self.attached or keeper.closing, timeout)
        return self.attached

    @property
    def device(self) -> DeviceMemory | None:
        """Returns the memory of the daemon's GPU. Returns None if the daemon has no GPU or its
        memory is not attached yet."""
        current = self._keeper.current
        return device_of(current) if current is not None and self.attached else None

    def wait_device(self, timeout: float) -> DeviceMemory | None:
        """Waits at most `timeout` seconds until GPU memory is attached or is known to be
        unavailable. Returns the GPU memory, or None without it."""
        keeper = self._keeper
        if keeper.device is None or keeper.inert:
            return None
        with keeper.changed:
            keeper.changed.wait_for(self._device_decided, timeout)
        return self.device

    def _device_decided(self) -> bool:
        keeper = self._keeper
        tried = keeper.device is not None and keeper.device.tried is keeper.current
        return (tried and keeper.current is not None) or keeper.closing

    @property
    def device_state(self) -> str:
        """Returns why no GPU memory is attached, in one line; empty if GPU memory is attached."""
        keeper = self._keeper
        if self.device is not None:
            return ""
        if keeper.device is None:
            return "Options.device is not set"
        return keeper.device.why or "the daemon is gone"

    @property
    def counters(self) -> Counters:
        """Returns the counts of the client."""
        return self._keeper.tally.snapshot()

    @property
    def state(self) -> str:
        """Returns the state in one line, for people."""
        keeper = self._keeper
        if keeper.inert:
            return "inert: a forked child has no connection"
        current = keeper.current
        if current is None or current.ended:
            return f"no daemon: {keeper.why if current is None else current.cause}"
        return f"attached to {current.greeting.server}, epoch {current.epoch:#x}"

    @property
    def epoch(self) -> int:
        """Returns the boot epoch of the attached daemon, 0 without one."""
        current = self._keeper.current
        return current.epoch if current is not None and self.attached else 0

    def stats(self) -> dict[str, float]:
        """Returns the daemon's counters and gauges, empty without a daemon."""
        current = self._keeper.current
        if not self.attached or current is None or not current.retain():
            self._keeper.tally.add("unavailable")
            return {}
        try:
            return figures(current, self.options.timeout)
        except SplicedError:
            return {}
        finally:
            current.release()

    def close(self) -> None:
        """Ends the connection. The daemon reclaims all resources of the client. Calls in progress
        fail, and leases that are not released become invalid.

        The call waits at most `Options.transfer_timeout` for the daemon to release engine memory.
        GPU memory is unmapped once all work that this process has queued on the GPU has run.
        """
        self._finalizer.detach()
        self._keeper.close()
