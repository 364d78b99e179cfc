"""Memory on a device, registered with a whole daemon: by handles, through the real client, copied by its lanes.

The driver is the tests' own of the host (`tests/tiers/host_driver.py`); everything above it is the real thing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from flexkv_py.client import Client, Gates, GateState, Outcome, Ticket
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


class DeviceWords:
    """How an embedder reaches gates on its device; on CUDA by a copy on a stream of its own."""

    def __init__(self, content: memoryview, offset: int) -> None:
        self.words = content[offset : offset + 4 * GEOMETRY.chunk_count].cast("I")
        self.written: list[int] = []

    def read(self, chunk: int) -> int:
        return self.words[chunk]

    def write(self, chunk: int, value: int) -> None:
        self.words[chunk] = value
        self.written.append(value)


@pytest.fixture
def gated(driver: HostDriver, start: Callable[..., DaemonThread]) -> Iterator[Gated]:
    with Client(start().socket, GEOMETRY) as client:
        yield Gated(client, driver)


class Gated:
    """A worker of a device that has saved eight blocks, and has gates behind its pages."""

    def __init__(self, client: Client, driver: HostDriver) -> None:
        self.client, self.driver = client, driver
        self.memory, self.content = register(client, driver, spare_bytes=64)
        self.content[: LAYOUT.bytes] = bytes(range(256)) * (LAYOUT.bytes // 256)
        self.keys, self.pages = client.keys(TOKENS), PAGES
        assert client.save(self.keys, self.pages, self.memory).wait(timeout_s=5).length == 8
        self.words = DeviceWords(self.content, LAYOUT.bytes)
        self.gates = Gates(LAYOUT.bytes, GEOMETRY.chunk_count, self.words)
        self.words.written.clear()

    def load(self) -> Ticket:
        pages = [page + 20 for page in self.pages]
        return self.client.load(self.keys, pages, self.memory, gates=self.gates)

    def states(self) -> set[GateState]:
        return {self.gates.wait(chunk, timeout_s=10) for chunk in range(GEOMETRY.chunk_count)}


def test_gates_on_a_device_are_written_by_the_daemons_stream(gated: Gated) -> None:
    """Behind the copies, which hang at first; the client itself writes nothing."""
    gated.driver.gate.clear()
    ticket = gated.load()
    assert gated.gates.wait(0, timeout_s=0.05) is GateState.SHUT
    gated.driver.gate.set()
    assert gated.states() == {GateState.OPEN}
    assert ticket.wait(timeout_s=5).length == 8
    for layer in LAYOUT.layers:
        first, length = layer.offset, layer.page_bytes * len(gated.pages)
        there = layer.offset + 20 * layer.page_stride
        assert gated.content[there : there + length] == gated.content[first : first + length]
    assert gated.words.written == []


def test_a_load_that_is_cancelled_gives_up_its_gates_on_the_stream(gated: Gated) -> None:
    """As failed behind what was submitted; the memory is not closed before, though its session asks for it."""
    gated.driver.gate.clear()
    gated.load().cancel()
    opener = threading.Timer(0.05, gated.driver.gate.set)
    opener.start()
    gated.memory.unregister()
    assert gated.states() <= {GateState.OPEN, GateState.FAILED}
    assert gated.words.written == []
    assert not gated.driver.opened
    opener.join()


def test_a_client_that_ends_opens_gates_on_its_device_itself(gated: Gated) -> None:
    """Through what the embedder gave it: the daemon's stream is held up."""
    gated.driver.gate.clear()
    gated.load()
    gated.client.close()
    assert gated.states() == {GateState.FAILED}
    assert gated.words.written == [3] * GEOMETRY.chunk_count
    gated.driver.gate.set()


def test_a_save_waits_for_the_workers_event(gated: Gated) -> None:
    """Sent before the rows are there, it stores those that were written before the event."""
    driver, client = gated.driver, gated.client
    stream, event = driver.create_stream(), driver.create_event()
    keys = client.keys([900 + token for token in TOKENS])
    ticket = client.save(keys, gated.pages, gated.memory, after=driver.export_event(event))
    assert not ticket.wait(timeout_s=0.05).done
    gated.content[: LAYOUT.bytes] = b"\x5a" * LAYOUT.bytes
    driver.record(event, stream)
    assert ticket.wait(timeout_s=5).length == 8
    gated.content[: LAYOUT.bytes] = bytes(LAYOUT.bytes)
    assert client.load(keys, gated.pages, gated.memory).wait(timeout_s=5).length == 8
    assert bytes(gated.content[: LAYOUT.layers[0].page_bytes]) == b"\x5a" * LAYOUT.layers[0].page_bytes
    driver.destroy_stream(stream)


def test_events_and_gates_of_a_device_that_lie_are_refused(gated: Gated) -> None:
    """A handle that is none, one that opens nothing, gates off the device's words: coded, and the session goes on."""
    client = gated.client
    with pytest.raises(FlexKVError, match="the 64 of an inter-process event") as caught:
        client.save(gated.keys, gated.pages, gated.memory, after=b"short")
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    fresh = client.keys([900 + token for token in TOKENS])
    ended = client.save(fresh, gated.pages, gated.memory, after=bytes(64)).wait(timeout_s=5)
    assert set(ended.outcomes) == {Outcome.REFUSED}
    assert "cannot be opened" in ended.detail
    odd, content = register(client, gated.driver, spare_bytes=64, first=255)
    gates = Gates(LAYOUT.bytes, GEOMETRY.chunk_count, DeviceWords(content, LAYOUT.bytes + 1))
    with pytest.raises(FlexKVError, match="aligned") as caught:
        client.load(gated.keys, gated.pages, odd, gates=gates)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert client.load(gated.keys, gated.pages, gated.memory, gates=gated.gates).wait(timeout_s=5).length == 8


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
