"""A daemon that lends several GPUs, with a real daemon and a driver without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client_samples import PATIENCE, SMALL, Connect, key_of, new_segment, wait_until
from fake_cuda import FakeCuda
from gpu_samples import attached, read
from running import Daemon, StartDaemon
from spliced_connector.client import Client, Model, NewSegment, Tier
from spliced_connector.gpu import load


@pytest.fixture
def two_gpus(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """UUIDs of the two devices that this process and its daemons see."""
    monkeypatch.setenv("FAKECUDA_DEVICES", "2")
    cuda.devices(2)
    return [uuid for _, uuid in load(cuda.path).devices()]


class Rank:
    """One rank of a model, on a GPU of its own."""

    def __init__(self, client: Client, rank: int, first: NewSegment | None) -> None:
        self.client, self.rank = client, rank
        self.device = attached(client)
        self.model: Model = client.model(replace(SMALL, tp_size=2), rank=rank)
        new = new_segment(self.model, 64, seed=rank)
        # The same tokens, and bytes of its own.
        self.new = new if first is None else replace(first, parts=new.parts)
        assert self.model.publish([self.new]) == [0]

    @property
    def key(self) -> bytes:
        """Of the segment."""
        return key_of(self.model, self.new)

    def check(self) -> None:
        """What the rank reads on its GPU is what it has published."""
        [segment] = self.model.acquire_device([self.key], wait=PATIENCE)
        assert segment is not None
        for i, want in enumerate(self.new.parts):
            assert isinstance(want, bytes)
            assert read(segment.device.gpu.context, segment.runs(i)) == want
        assert segment.release()

    def tier(self) -> Tier:
        """Where a match says that the segment is."""
        return Tier(self.model.match(keys=[self.key]).tier[0])


def open_ranks(daemon: Daemon, connect_gpu: Connect, uuids: list[bytes]) -> list[Rank]:
    """Both ranks, in this process."""
    ranks: list[Rank] = []
    for i, uuid in enumerate(uuids):
        client = connect_gpu(daemon.socket, device={"uuid": uuid})
        ranks.append(Rank(client, i, ranks[0].new if ranks else None))
        assert ranks[i].device.gpu.uuid == uuid
    assert ranks[0].key == ranks[1].key
    return ranks


def test_ranks_of_a_model_read_their_own_gpus(
    two_gpus: list[bytes], start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    ranks = open_ranks(start_gpu_daemon("-hbm-device=all"), connect_gpu, two_gpus)
    assert ranks[0].tier() == Tier.DRAM
    ranks[0].check()
    ranks[1].check()
    wait_until(lambda: all(rank.tier() == Tier.HBM for rank in ranks))


def test_a_gpu_that_the_daemon_has_not_is_refused_by_name(
    two_gpus: list[bytes], start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    daemon = start_gpu_daemon("-hbm-device=0")
    client = connect_gpu(daemon.socket, device={"uuid": two_gpus[1]})
    wait_until(lambda: "this daemon shares GPU-" in client.device_state)
    other = connect_gpu(daemon.socket, device={"uuid": two_gpus[0]})
    attached(other)
