"""The driver's binding, against a driver without a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_cuda import FakeCuda
from spliced_connector.errors import Code
from spliced_connector.gpu import (
    Context,
    CudaError,
    DevicePtr,
    Driver,
    NoDriverError,
    find_device,
    load,
    uuid_text,
)
from spliced_connector.gpu.errors import remedy


@pytest.fixture
def context(cuda: FakeCuda) -> Iterator[Context]:
    """The primary context of the only device, current on no thread."""
    driver = load(cuda.path)
    with contextlib.closing(Context(driver, find_device(driver, b""))) as context:
        yield context


def test_nothing_is_loaded_by_an_import() -> None:
    code = (
        "import sys; sys.path.insert(0, 'src');"
        "import spliced_connector.client, spliced_connector.gpu.driver;"
        "print('libcuda' in open('/proc/self/maps').read())"
    )
    folder = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_no_driver_or_an_unusable_one_is_named() -> None:
    with pytest.raises(NoDriverError, match=r"no CUDA driver: .*libcuda-of-nobody"):
        Driver("libcuda-of-nobody.so.1")
    with pytest.raises(NoDriverError, match="has no cuInit"):
        Driver("libc.so.6")


def test_a_driver_that_is_too_old_is_refused(cuda: FakeCuda) -> None:
    cuda.set("VERSION", "11070")
    with pytest.raises(NoDriverError, match="CUDA 11070, want 11080"):
        Driver(cuda.path)
    cuda.set("VERSION", "11080")
    assert Driver(cuda.path).version == 11080


def test_devices_are_found_by_uuid(cuda: FakeCuda) -> None:
    driver = load(cuda.path)
    [(device, uuid)] = driver.devices()
    assert find_device(driver, uuid) == find_device(driver, b"") == device
    other = bytes(16)
    with pytest.raises(NoDriverError) as caught:
        find_device(driver, other)
    assert uuid_text(other) == "GPU-00000000-0000-0000-0000-000000000000"
    assert uuid_text(other) in caught.value.text
    assert uuid_text(uuid) in caught.value.text


def test_a_thread_keeps_the_context_that_it_had(context: Context) -> None:
    driver = context.driver
    assert driver.current_context() == 0
    with context.current():
        assert driver.current_context() == context.handle
        with context.current():
            assert driver.current_context() == context.handle
        assert driver.current_context() == context.handle
    assert driver.current_context() == 0
    with pytest.raises(CudaError), context.current():
        driver.free(DevicePtr(8))
    assert driver.current_context() == 0
    with pytest.raises(CudaError, match="cuMemAlloc_v2: 201 CUDA_ERROR_INVALID_CONTEXT"):
        driver.alloc(8)


def test_a_context_of_the_engine_is_used_and_not_released(context: Context) -> None:
    same = Context(context.driver, context.device, context.handle)
    with same.current() as driver:
        driver.free(driver.alloc(8))
    same.close()
    with context.current() as driver:
        driver.free(driver.alloc(8))


def test_copies_and_marks_keep_the_order_of_a_stream(context: Context, cuda: FakeCuda) -> None:
    cuda.set("DELAY", "2000")
    data = os.urandom(1 << 16)
    back = ctypes.create_string_buffer(len(data))
    source = ctypes.create_string_buffer(data, len(data))
    with context.current() as driver:
        stream, event = driver.stream(), driver.event()
        assert driver.passed(event)  # it stands nowhere yet
        memory, other = driver.alloc(len(data)), driver.alloc(len(data))
        driver.lock_pages(ctypes.addressof(source), len(data))
        driver.copy_to_device(memory, ctypes.addressof(source), len(data), stream)
        driver.copy(other, memory, len(data), stream)
        driver.copy_to_host(ctypes.addressof(back), other, len(data), stream)
        driver.record(event, stream)
        assert not driver.passed(event)
        assert not driver.idle(stream)
        driver.wait_event(event)
        assert driver.passed(event)
        driver.synchronize(stream)
        assert driver.idle(stream)
        assert back.raw == data
        assert driver.address_range(DevicePtr(memory + 100)) == (memory, len(data))
        driver.unlock_pages(ctypes.addressof(source))
        driver.free(memory)
        driver.free(other)
        driver.destroy_event(event)
        driver.destroy_stream(stream)


def test_a_stream_waits_for_a_value_that_another_writes(context: Context) -> None:
    back = ctypes.c_uint64()
    with context.current() as driver:
        waiting, writing = driver.stream(), driver.stream()
        slot = driver.alloc(8)
        zero = ctypes.c_uint64(0)
        driver.copy_to_device(slot, ctypes.addressof(zero), 8, writing)
        driver.synchronize(writing)
        driver.wait_value(waiting, slot, 7)
        assert not driver.idle(waiting)
        driver.write_value(writing, slot, 6)
        driver.synchronize(writing)
        assert not driver.idle(waiting)
        driver.write_value(writing, slot, 8)
        driver.synchronize(waiting)
        event = driver.event()
        driver.record(event, writing)
        driver.follow(waiting, event)
        driver.copy_to_host(ctypes.addressof(back), slot, 8, waiting)
        driver.synchronize_all()
        assert back.value == 8
        driver.destroy_event(event)
        driver.free(slot)
        driver.destroy_stream(waiting)
        driver.destroy_stream(writing)


def test_other_threads_run_while_a_call_waits(context: Context) -> None:
    ran = threading.Event()
    with context.current() as driver:
        stream = driver.stream()
        slot = driver.alloc(8)
        zero = ctypes.c_uint64(0)
        driver.copy_to_device(slot, ctypes.addressof(zero), 8, stream)
        driver.synchronize(stream)  # or the zero might come behind what the thread writes
        driver.wait_value(stream, slot, 1)

        def go_on() -> None:
            with context.current():
                other = driver.stream()
                driver.write_value(other, slot, 1)
                driver.synchronize(other)
                driver.destroy_stream(other)
            ran.set()

        thread = threading.Thread(target=go_on)
        thread.start()
        driver.synchronize(stream)
        thread.join()
        assert ran.is_set()
        driver.free(slot)
        driver.destroy_stream(stream)


def test_failures_have_cuda_names_and_remedies(context: Context, cuda: FakeCuda) -> None:
    with context.current() as driver:
        cuda.fault("FAIL", "cuMemAlloc_v2:1:2")
        with pytest.raises(CudaError, match="cuMemAlloc_v2: 2 CUDA_ERROR_OUT_OF_MEMORY") as full:
            driver.alloc(8)
        assert (full.value.code, full.value.result) == (Code.FULL, 2)
        cuda.fault("FAIL", "cuMemAlloc_v2:1:4242")
        with pytest.raises(CudaError, match="cuMemAlloc_v2: 4242") as other:
            driver.alloc(8)
        assert other.value.code == Code.UNAVAILABLE
        with pytest.raises(CudaError, match="cuModuleLoadDataEx"):
            driver.load_module(b"no kernels")
        memory = driver.alloc(8)
        handle = driver.ipc_handle(memory)
        with pytest.raises(CudaError, match="shareProcessNamespace") as same:
            driver.ipc_open(handle)  # from a process with our own PID
        assert same.value.result == 201
        driver.free(memory)
    with pytest.raises(ValueError, match="63 bytes"):
        driver.ipc_open(bytes(63))
    assert "expandable_segments:False" in remedy("cuIpcGetMemHandle", 1)
    assert remedy("cuMemAlloc_v2", 1) == ""
