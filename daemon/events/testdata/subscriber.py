"""Reads a stream as vLLM's own classes decode it, over libzmq: subscribe, ask for a replay
of what came behind the first message, print one line for each event.

usage: subscriber.py PUB ROUTER MESSAGES
"""

import sys

try:
    import msgspec
    import zmq
    from vllm.distributed.kv_events import (
        AllBlocksCleared,
        BlockRemoved,
        BlockStored,
        KVEventBatch,
        ZmqEventPublisher,
    )
except ImportError as err:
    print("missing", err, flush=True)
    sys.exit()

PATIENCE_MS = 120_000  # the machine may be busy


def show(decoder: msgspec.msgpack.Decoder, source: str, topic: bytes, seq: bytes, payload: bytes) -> None:
    batch = decoder.decode(payload)
    for event in batch.events:
        if isinstance(event, BlockStored):
            # What a consumer needs to make hashes of its own.
            assert len(event.token_ids) == event.block_size * len(event.block_hashes), event
            text = (
                f"stored {event.group_idx} {event.kv_cache_spec_kind} {event.medium} "
                f"parent={event.parent_block_hash is not None} blocks={len(event.block_hashes)} "
                f"ids={sum(event.token_ids)}"
            )
        elif isinstance(event, BlockRemoved):
            text = f"removed {event.group_idx} {event.medium} blocks={len(event.block_hashes)}"
        else:
            assert isinstance(event, AllBlocksCleared), event
            text = "cleared"
        print(source, topic.decode(), batch.data_parallel_rank, text, flush=True)


def main() -> None:
    pub, router, messages = sys.argv[1], sys.argv[2], int(sys.argv[3])
    decoder = msgspec.msgpack.Decoder(KVEventBatch)
    context = zmq.Context()
    sub = context.socket(zmq.SUB)
    sub.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
    sub.setsockopt(zmq.HEARTBEAT_IVL, 200)
    sub.connect(pub)
    sub.subscribe("kv@")
    print("ready", flush=True)
    last = start = None
    for _ in range(messages):
        topic, seq, payload = sub.recv_multipart()
        number = int.from_bytes(seq, "big")
        assert last is None or number == last + 1, (last, number)
        last = number
        start = start or number + 1
        show(decoder, "live", topic, seq, payload)
    req = context.socket(zmq.REQ)
    req.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
    req.connect(router)
    req.send(start.to_bytes(8, "big"))
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
    dealer.connect(router)
    dealer.send_multipart([b"", start.to_bytes(8, "big")])
    topic, seq, payload = req.recv_multipart()
    show(decoder, "replayed to REQ", topic, seq, payload)
    while True:
        empty, topic, seq, payload = dealer.recv_multipart()
        assert empty == b""
        if seq == ZmqEventPublisher.END_SEQ:
            assert payload == b"" and topic == b""
            break
        show(decoder, "replayed", topic, seq, payload)
    print("end", flush=True)


if __name__ == "__main__":
    main()
