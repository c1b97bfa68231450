"""Keeps an index of blocks as a router does, over libzmq, which connects again by itself: prints
the number of blocks behind each message, and whether its number went back.

usage: index.py PUB
"""

import sys

try:
    import msgspec
    import zmq
except ImportError as err:
    print("missing", err, flush=True)
    sys.exit()


def main() -> None:
    sub = zmq.Context().socket(zmq.SUB)
    sub.subscribe("kv@")
    sub.connect(sys.argv[1])
    print("ready", flush=True)
    index: set[tuple[int, int]] = set()
    last = None
    while True:
        _, seq, payload = sub.recv_multipart()
        number = int.from_bytes(seq, "big")
        for event in msgspec.msgpack.decode(payload)[1]:
            match event["type"]:
                case "BlockStored":
                    index.update((event["group_idx"], h) for h in event["block_hashes"])
                case "BlockRemoved":
                    index.difference_update((event["group_idx"], h) for h in event["block_hashes"])
                case "AllBlocksCleared":
                    index.clear()
        back = last is not None and number < last
        last = number
        print("back" if back else "on", len(index), flush=True)


if __name__ == "__main__":
    main()
