"""Memory on a device, registered with a whole daemon: by handles, through the real client, copied by its lanes.

The driver is the tests' own of the host (`tests/tiers/host_driver.py`); everything above it is the real thing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from flexkv_py.client import Client
from flexkv_py.errors import ErrorCode, FlexKVError
from tests.tiers.host_driver import HostDriver

from .conftest import GEOMETRY, DaemonThread
from .on_device import LAYOUT, PAGES, TOKENS, register


def test_blocks_of_a_device_come_back_on_a_device(driver: HostDriver, start: Callable[..., DaemonThread]) -> None:
    """Saved from one device memory, loaded into other pages of another, the arena pinned meanwhile."""
    daemon, threads = start(), set(threading.enumerate())
    with Client(daemon.socket, GEOMETRY) as client:
        (source, written), (target, read) = register(client, driver), register(client, driver)
        written[:] = bytes(range(251)) * (len(written) // 251) + bytes(len(written) % 251)
        keys = client.keys(TOKENS)
        assert client.save(keys, PAGES, source).wait(timeout_s=5).length == 8
        assert client.load(keys, [page + 20 for page in PAGES], target).wait(timeout_s=5).length == 8
        for layer in LAYOUT.layers:
            first, length = layer.offset, layer.page_bytes * len(PAGES)
            there = layer.offset + 20 * layer.page_stride
            assert read[there : there + length] == written[first : first + length]
        status = daemon.call(daemon.parts.devices.status)
        assert status["cuda"] == "on"
        source.unregister()
        target.unregister()
        assert not driver.opened
    assert daemon.stop() == 0
    assert not driver.pinned
    assert not set(threading.enumerate()) - threads


def test_a_worker_that_dies_or_moves_its_memory_leaves_nothing_open(
    driver: HostDriver, start: Callable[..., DaemonThread]
) -> None:
    """Memory that moved is unregistered and registered anew; when the session ends, all of it is closed."""
    daemon = start()
    with Client(daemon.socket, GEOMETRY) as client:
        memory, _ = register(client, driver)
        keys = client.keys(TOKENS)
        assert client.save(keys, PAGES, memory).wait(timeout_s=5).length == 8
        memory.unregister()  # asleep
        memory, content = register(client, driver)  # awake, elsewhere
        content[:] = b"\xff" * len(content)
        assert client.load(keys, PAGES, memory).wait(timeout_s=5).length == 8
        assert bytes(content[: LAYOUT.layers[0].page_bytes]) == bytes(LAYOUT.layers[0].page_bytes)
        assert len(driver.opened) == 1
    assert daemon.stop() == 0
    assert not driver.opened


def test_device_memory_is_refused_with_cause_and_cure(driver: HostDriver, start: Callable[..., DaemonThread]) -> None:
    """A device the daemon does not see is a coded error, and the session goes on."""
    daemon = start()
    with Client(daemon.socket, GEOMETRY) as client:
        with pytest.raises(FlexKVError) as caught:
            register(client, driver, device="GPU-none")
        assert caught.value.code is ErrorCode.DEVICE_UNKNOWN
        client.ping()


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_a_daemon_without_cuda_says_what_is_missing(
    start: Callable[..., DaemonThread], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """No driver on this machine, or CUDA switched off: it serves, and refuses device memory with the reason."""
    monkeypatch.setattr("flexkv_tiers.cuda.driver.LIBRARY", "libcuda-of-nobody.so.1")
    daemon = start(cuda={"mode": mode})
    with Client(daemon.socket, GEOMETRY) as client:
        with pytest.raises(FlexKVError, match="NVIDIA driver" if mode == "auto" else "CUDA is off") as caught:
            register(client, HostDriver())
        assert caught.value.code is ErrorCode.CUDA_MISSING
        client.ping()


def test_a_daemon_that_must_have_cuda_does_not_start_without(
    start: Callable[..., DaemonThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mode = "on"` turns the missing driver into the error of the start."""
    monkeypatch.setattr("flexkv_tiers.cuda.driver.LIBRARY", "libcuda-of-nobody.so.1")
    with pytest.raises(FlexKVError) as caught:
        start(cuda={"mode": "on"})
    assert caught.value.code is ErrorCode.CUDA_MISSING
