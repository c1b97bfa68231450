"""Maps GPU memory of another process into torch through descriptor 3, without a copy.

Memory that the parent filled with random numbers is mapped by `spliced_connector`, seen as a
tensor, compared with the numbers, written by torch, and read back through the driver.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import rows

from spliced_connector.errors import SplicedError
from spliced_connector.gpu import (
    LIBRARY,
    Context,
    DevicePtr,
    find_device,
    load,
    map_descriptors,
)

if TYPE_CHECKING:
    from torch import Tensor

DESCRIPTOR = 3


@dataclass(frozen=True)
class Floats:
    """Float32 numbers in device memory, described by `__cuda_array_interface__`."""

    address: int
    count: int

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        shape = (self.count,)
        return {"shape": shape, "typestr": "<f4", "data": (self.address, False), "version": 3}


def view(address: DevicePtr, count: int, ordinal: int) -> Tensor:
    """Returns torch's tensor over the memory. Raises `RuntimeError` if torch would copy."""
    import torch

    tensor = torch.as_tensor(Floats(address, count), device=torch.device("cuda", ordinal))
    if tensor.data_ptr() != address:
        raise RuntimeError("torch has copied the memory")
    return tensor


def check(library: str, device: str, nbytes: int, numbers: Path) -> None:
    """Prints the rows. Raises `SplicedError`, `RuntimeError`."""
    import torch

    driver = load(library)
    ordinal = find_device(driver, bytes.fromhex(device.removeprefix("GPU-").replace("-", "")))
    torch.cuda.init()
    context = Context(driver, ordinal)
    memory = map_descriptors(context, [nbytes], [DESCRIPTOR])
    try:
        expected = torch.frombuffer(bytearray(numbers.read_bytes()), dtype=torch.float32)
        address = memory.address(0, nbytes)
        tensor = view(address, expected.numel(), ordinal)
        same = bool(torch.equal(tensor.cpu(), expected))
        rows.holds("torch reads what another process wrote", "" if same else "numbers differ")
        tensor.neg_().add_(1.0)
        torch.cuda.synchronize(ordinal)
        raw = bytearray(expected.numel() * 4)
        there = (ctypes.c_char * len(raw)).from_buffer(raw)
        with context.current():
            stream = driver.stream()
            driver.copy_to_host(ctypes.addressof(there), address, len(raw), stream)
            driver.synchronize(stream)
            driver.destroy_stream(stream)
        del there, tensor
        back = torch.frombuffer(raw, dtype=torch.float32)
        same = bool(torch.equal(back, expected.neg().add(1.0)))
        rows.holds("the driver reads what torch wrote", "" if same else "numbers differ")
    finally:
        memory.close()
        context.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default="")
    parser.add_argument("--device", required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--numbers", type=Path, required=True)
    args, _ = parser.parse_known_args()
    try:
        import torch
    except ImportError as err:
        rows.cannot_run(f"no torch: {err}")
    if not torch.cuda.is_available():
        rows.cannot_run(f"torch {torch.__version__} finds no CUDA")
    try:
        check(args.library or LIBRARY, args.device, args.bytes, args.numbers)
    except (SplicedError, RuntimeError) as err:
        print(f"{type(err).__name__}: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
