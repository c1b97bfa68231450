"""One end of Mooncake's transfer engine over TCP, for the benchmark of scripts/lab/network.

serve ADDRESS BYTES   offers memory and prints its location
read ADDRESS BYTES SESSION REMOTE
                      reads all the memory once for every line on standard input, as one range
                      or, if the line is "ranges", as ranges of 4 MiB, and prints seconds

The bytes read are compared with the bytes offered. TransferEngine is the package's own class.
"""

import ctypes
import hashlib
import sys
import time

from mooncake.engine import TransferEngine

RANGE = 4 << 20


def content(size: int) -> bytes:
    block = b"".join(hashlib.sha256(i.to_bytes(4, "little")).digest() for i in range(1 << 15))
    return (block * (size // len(block) + 1))[:size]


def engine(address: str, size: int) -> tuple[TransferEngine, int, ctypes.Array]:
    e = TransferEngine()
    if e.initialize(address, "P2PHANDSHAKE", "tcp", "") != 0:
        sys.exit("mooncake: initialize failed")
    memory = (ctypes.c_char * size)()
    at = ctypes.addressof(memory)
    if e.register_memory(at, size) != 0:
        sys.exit("mooncake: register_memory failed")
    return e, at, memory


def say(*words: object) -> None:
    """Prints a line with a unique first word, because the engine logs to the same output."""
    print("peer", *words, flush=True)


def serve(address: str, size: int) -> None:
    e, at, memory = engine(address, size)
    ctypes.memmove(at, content(size), size)
    say(f"{address}:{e.get_rpc_port()}", at)
    sys.stdin.read()


def read(address: str, size: int, session: str, remote: int) -> None:
    e, at, memory = engine(address, size)
    want = content(size)
    offsets = range(0, size, RANGE)
    lengths = [min(RANGE, size - off) for off in offsets]
    say("ready")
    for line in sys.stdin:
        ctypes.memset(at, 0, size)
        began = time.perf_counter()
        if line.strip() == "ranges":
            failed = e.batch_transfer_sync_read(
                session, [at + off for off in offsets], [remote + off for off in offsets], lengths
            )
        else:
            failed = e.transfer_sync_read(session, at, remote, size)
        took = time.perf_counter() - began
        if failed or memory.raw != want:
            sys.exit(f"mooncake: read failed ({failed}), or gave wrong bytes")
        say(took)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        read(sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
