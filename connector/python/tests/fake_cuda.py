"""The CUDA driver without a GPU (gpuipc/cuda/fakecuda), and its controls."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from pathlib import Path

from running import ROOT
from spliced_connector.gpu import Context, Stream, find_device, load

_COUNTS = (
    "contexts", "allocations", "physical", "reservations", "mappings", "imports",
    "memory_objects", "memory_bytes", "streams", "workers", "queued", "events", "modules",
    "registered", "registered_bytes", "host_allocations", "descriptors", "calls", "executed",
    "misuses", "hanging",
)  # fmt: skip
_SO_FAR = ("calls", "executed", "misuses")


def library() -> Path:
    """Build it, where its sources have changed. Raises FileNotFoundError saying what is missing."""
    for tool in ("go", "cc", "c++"):
        if shutil.which(tool) is None:
            raise FileNotFoundError(f"no {tool} to build a CUDA driver without a GPU with")
    build = ["go", "run", "./gpuipc/cuda/fakecuda/build", "bin/fakecuda"]
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return ROOT / "bin" / "fakecuda" / "libcuda.so.1"


class FakeCuda:
    """Its settings, faults and counts in this process."""

    def __init__(self, path: Path, directory: Path) -> None:
        self.path = str(path)
        self.directory = directory
        """What processes that share its devices have in common."""
        self._library = ctypes.CDLL(self.path)
        self._library.fakecuda_calls.restype = ctypes.c_uint64
        self.set("DIR", str(directory))

    def warm(self) -> None:
        """Use it once: it keeps some files for the life of the process."""
        driver = load(self.path)
        context = Context(driver, find_device(driver, b""))
        with context.current():
            driver.free(driver.alloc(1))
        context.close()

    def devices(self, n: int | None) -> None:
        """How many there are from now on, where none is in use; None takes it back."""
        self.set("DEVICES", None if n is None else str(n))
        assert self._library.cuInit(0) == 0

    def set(self, name: str, value: str | None) -> None:
        """A setting; None takes it back."""
        raw = None if value is None else value.encode()
        assert self._library.fakecuda_set(name.encode(), raw) == 0, name

    def fault(self, kind: str, spec: str) -> None:
        """Have something go wrong."""
        assert self._library.fakecuda_fault(kind.encode(), spec.encode()) == 0, spec

    def clear(self) -> None:
        """End all faults, and let calls that hang go on."""
        self._library.fakecuda_clear()
        self._library.fakecuda_release()

    def reset(self) -> None:
        """End everything that exists, whatever waits for it."""
        self.clear()
        self._library.fakecuda_reset()
        load(self.path).imports.clear()

    def capture(self, stream: Stream) -> None:
        """Begin a capture, in the mode that forbids most to other threads."""
        assert self._library.cuStreamBeginCapture_v2(ctypes.c_uint64(stream), 0) == 0

    def end_capture(self, stream: Stream) -> int:
        """End it; 0, or 901 when a call broke it."""
        graph = ctypes.c_uint64()
        code = self._library.cuStreamEndCapture(ctypes.c_uint64(stream), ctypes.byref(graph))
        return int(code)

    def environment(self) -> dict[str, str]:
        """For another process that shares the devices."""
        return {"FAKECUDA_DIR": str(self.directory)}

    def counts(self) -> dict[str, int]:
        """All counts."""
        words = (ctypes.c_uint64 * len(_COUNTS))()
        self._library.fakecuda_stats(words, ctypes.c_size_t(ctypes.sizeof(words)))
        return dict(zip(_COUNTS, words, strict=True))

    def calls(self, *names: str) -> list[int]:
        """How often functions were called so far."""
        return [int(self._library.fakecuda_calls(name.encode())) for name in names]

    def live(self) -> dict[str, int]:
        """Counts of what exists now."""
        return {name: n for name, n in self.counts().items() if name not in _SO_FAR}

    def text(self) -> str:
        """What exists now, a line each."""
        text = ctypes.create_string_buffer(1 << 16)
        self._library.fakecuda_live(text, ctypes.c_size_t(len(text)))
        return text.value.decode()

    def wait_live(self, want: dict[str, int], seconds: float = 30.0) -> None:
        """Poll until no more than that exists."""
        until = time.monotonic() + seconds
        while self.live() != want and time.monotonic() < until:
            time.sleep(0.005)

    def end(self) -> None:
        """Take back what a test has set, and what it has left."""
        self.reset()
        for name in (
            "MEM",
            "VERSION",
            "PID",
            "DELAY",
            "POISON",
            "NOVMM",
            "NOWAITVALUE",
            "ONEQUEUE",
            "PRIORITIES",
            "DIR",
        ):
            self.set(name, None)
        self.devices(None)
