"""When memory of devices is opened and closed: off the loop, in order, after the last copy, and never left open."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from flexkv_py.client import Client, DeviceAllocation
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.codec import encode
from flexkv_py.wire.messages import (
    Done,
    LayerLayout,
    Load,
    Opened,
    Ping,
    Progress,
    Registered,
    RegisterMemory,
    Save,
    UnregisterMemory,
    Wait,
)
from tests.leaks import open_files
from tests.tiers.host_driver import GRANULARITY_BYTES, UUID, HostDriver

from .conftest import GEOMETRY, DaemonThread
from .on_device import LAYOUT, PAGES, TOKENS, register, rows_in
from .test_lives import until
from .test_protocol import Stranger

PACKED = b"".join(page.to_bytes(4, "little") for page in PAGES)


def message(request: int, *allocations: DeviceAllocation, device: str = UUID) -> RegisterMemory:
    length = sum(each.length for each in allocations)
    layout = LAYOUT.layers
    return RegisterMemory(
        request, length, LAYOUT.page_count, LAYOUT.page_tokens, layout, "paged", device, [*allocations]
    )


def exported(driver: HostDriver) -> DeviceAllocation:
    return DeviceAllocation(0, LAYOUT.bytes, driver.allocate(LAYOUT.bytes)[0])


def by_plane() -> list[LayerLayout]:
    """The layers of each plane in an allocation of one granule."""
    layout, ends = [], [0, GRANULARITY_BYTES]
    for entry in LAYOUT.layers:
        layout.append(LayerLayout(entry.plane, entry.layer, ends[entry.plane], entry.page_stride, entry.page_bytes))
        ends[entry.plane] += LAYOUT.page_count * entry.page_stride
    return layout


class Virtual:
    """A worker whose KV is two allocations of physical memory, sent as descriptors over a bare socket."""

    def __init__(self, stranger: Stranger, driver: HostDriver) -> None:
        self.driver, self.stranger = driver, stranger
        self.move()

    def move(self) -> None:
        """Into new memory; the old content is gone."""
        made = [self.driver.allocate_physical(GRANULARITY_BYTES) for _ in range(2)]
        self.descriptors = [descriptor for descriptor, _ in made]
        self.content = [content for _, content in made]

    def register(self, request: int, *, beside: int = 2) -> None:
        parts = [DeviceAllocation(0, GRANULARITY_BYTES, b"")] * 2
        asked = message(request, *parts)
        asked.layout = by_plane()
        socket.send_fds(self.stranger.socket, [encode(asked)], self.descriptors[:beside])
        for descriptor in self.descriptors:
            os.close(descriptor)

    def fill(self) -> list[bytes]:
        """Bytes that differ by plane everywhere; returns them."""
        for number, content in enumerate(self.content):
            content[:] = bytes((each + number) % 251 for each in range(256)) * (GRANULARITY_BYTES // 256)
        return [bytes(each) for each in self.content]

    def holds(self, saved: list[bytes]) -> bool:
        """Whether the rows of PAGES are those, in all layers and planes."""
        for entry in by_plane():
            plane, offset = divmod(entry.offset, GRANULARITY_BYTES)
            end = offset + len(PAGES) * entry.page_bytes
            if self.content[plane][offset:end] != saved[plane][offset:end]:
                return False
        return True

    def ends(self, asked: Save | Load) -> Progress:
        """How a ticket ends."""
        self.stranger.say(asked)
        opened = self.stranger.hear()
        assert isinstance(opened, Opened)
        self.stranger.say(Wait(asked.id, opened.ticket, -1, 5000))
        progress = self.stranger.hear()
        assert isinstance(progress, Progress)
        return progress


Start = Callable[..., DaemonThread]
Greeted = Callable[[DaemonThread], Stranger]


@pytest.fixture
def greeted() -> Iterator[Greeted]:
    """Bare sockets that have said hello, closed at the end."""
    with ExitStack() as stack:

        def greeted(daemon: DaemonThread) -> Stranger:
            stranger = Stranger(daemon.socket)
            stack.callback(stranger.socket.close)
            return stranger.greet()

        yield greeted


# ------------------------------------------------------------------- opening


def test_opening_holds_up_nobody_and_keeps_the_order(driver: HostDriver, start: Start, greeted: Greeted) -> None:
    """While the driver takes its time all are served; memories get their numbers in the order of their messages."""
    daemon = start(limits={"memories_per_session_max": 2})
    stranger = greeted(daemon)
    driver.door.clear()
    stranger.say(message(2, exported(driver)), message(3, exported(driver)), message(4, exported(driver)), Ping(5))
    assert stranger.hears_code(4) == ErrorCode.LIMIT_EXCEEDED
    assert stranger.hear() == Done(5)
    with Client(daemon.socket, GEOMETRY) as client:
        client.ping()
    driver.door.set()
    assert [stranger.hear(), stranger.hear()] == [Registered(2, 1), Registered(3, 2)]


def test_a_refusal_of_the_driver_is_an_answer_and_is_counted(
    driver: HostDriver, start: Start, greeted: Greeted
) -> None:
    """A device nobody sees, a handle of nobody: coded, the session goes on, and the next memory opens."""
    daemon = start()
    stranger = greeted(daemon)
    stranger.say(
        message(2, exported(driver), device="GPU-none"),
        message(3, DeviceAllocation(0, LAYOUT.bytes, bytes(64))),
        message(4, exported(driver)),
    )
    assert [stranger.hears_code(request) for request in (2, 3)] == [ErrorCode.DEVICE_UNKNOWN, ErrorCode.BAD_MEMORY]
    assert stranger.hear() == Registered(4, 3)
    failures = daemon.call(lambda: dict(daemon.parts.server.failures))
    assert failures == {ErrorCode.DEVICE_UNKNOWN: 1, ErrorCode.BAD_MEMORY: 1}
    assert len(driver.opened) == 1


def test_a_device_without_streams_is_refused_and_its_memory_closed(
    driver: HostDriver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lanes, no memory; and a bug on the thread is told as one."""
    daemon = start()
    with Client(daemon.socket, GEOMETRY) as client:
        driver.refuse["create_stream"] = 2
        with pytest.raises(FlexKVError, match="no copies to this device") as refused:
            register(client, driver)
        assert refused.value.code is ErrorCode.TIER_UNAVAILABLE
        assert not driver.opened
        driver.refuse.clear()
        monkeypatch.setattr(driver, "allocation_bytes", lambda address: 1 // 0)
        with pytest.raises(FlexKVError) as broken:
            register(client, driver)
        assert broken.value.code is ErrorCode.INTERNAL


@pytest.mark.parametrize("stops", [False, True])
def test_a_worker_that_dies_while_its_memory_is_opened_leaves_nothing(
    driver: HostDriver, start: Start, greeted: Greeted, stops: bool
) -> None:
    """Neither a mapping nor a descriptor, whether the daemon goes on or stops meanwhile."""
    daemon = start()
    files = open_files()
    worker = Virtual(greeted(daemon), driver)
    driver.door.clear()
    worker.register(2)
    until(
        lambda: bool(daemon.call(lambda: [each for each in daemon.parts.sessions.by_number.values() if each.opening]))
    )
    worker.stranger.socket.close()
    for content in worker.content:
        content.close()
    until(lambda: daemon.parts.server.connections == 0)
    opener = threading.Timer(0.1, driver.door.set)
    opener.start()
    if stops:
        assert daemon.stop() == 0
    else:
        until(lambda: open_files() <= files)
    opener.join()
    until(lambda: not driver.imported)


# -------------------------------------------------------- physical memory


def test_memory_that_comes_as_descriptors_is_loaded_and_saved(
    driver: HostDriver, start: Start, greeted: Greeted
) -> None:
    """Saved from two allocations, then asleep: unmapped; awake in others: loaded there, byte for byte."""
    daemon = start()
    with Client(daemon.socket, GEOMETRY) as client:
        keys = b"".join(client.keys(TOKENS))
    worker = Virtual(greeted(daemon), driver)
    worker.register(2)
    assert worker.stranger.hear() == Registered(2, 1)
    saved = worker.fill()
    assert worker.ends(Save(3, keys, PACKED, 1, deadline_ms=5000)).length == 8
    worker.stranger.say(UnregisterMemory(4, 1))
    assert worker.stranger.hear() == Done(4)
    assert not driver.imported
    worker.move()
    worker.register(5)
    assert worker.stranger.hear() == Registered(5, 2)
    assert worker.ends(Load(6, keys, PACKED, 2, deadline_ms=5000)).length == 8
    assert worker.holds(saved)
    worker.stranger.socket.close()
    until(lambda: not driver.imported)


def test_a_descriptor_that_is_missing_is_said_so(driver: HostDriver, start: Start, greeted: Greeted) -> None:
    """One of two came: nothing is opened, and the one that came is closed."""
    worker = Virtual(greeted(start()), driver)
    files = open_files()
    worker.register(2, beside=1)
    assert worker.stranger.hears_code(2) == ErrorCode.BAD_MEMORY
    assert open_files() <= files
    assert not driver.imported


# ------------------------------------------------------------ sleep and death


def test_a_worker_that_sleeps_under_a_copy_waits_for_it_and_its_ticket_is_coded(
    driver: HostDriver, start: Start
) -> None:
    """Unregistering ends when the copy has; the old memory is closed, and the new one is loaded from the cache."""
    daemon = start()
    with Client(daemon.socket, GEOMETRY) as client:
        memory, content = register(client, driver)
        content[:] = bytes(range(256)) * (len(content) // 256)
        saved, keys = rows_in(content), client.keys(TOKENS)
        assert client.save(keys, PAGES, memory).wait(timeout_s=5).length == 8
        driver.gate.clear()
        ticket = client.load(keys, PAGES, memory)
        asleep = threading.Thread(target=memory.unregister)
        asleep.start()
        until(lambda: ticket.wait(timeout_s=0).done)
        assert set(ticket.wait().outcomes) == {"cancelled"}
        assert len(driver.opened) == 1  # the copy still writes there
        assert asleep.is_alive()
        driver.gate.set()
        asleep.join(5)
        assert not driver.opened
        memory, content = register(client, driver)
        assert client.load(keys, PAGES, memory).wait(timeout_s=5).length == 8
        assert rows_in(content) == saved


def test_a_worker_that_dies_under_a_copy_is_let_go_after_its_end(driver: HostDriver, start: Start) -> None:
    """Its memory stays open until no copy touches it, and is closed then; what it was saving is not visible."""
    daemon = start()
    client = Client(daemon.socket, GEOMETRY)
    memory, _ = register(client, driver)
    keys = client.keys(TOKENS)
    driver.gate.clear()
    client.save(keys, PAGES, memory)
    until(lambda: bool(daemon.call(daemon.parts.devices.guard.used)))
    client.close()
    until(lambda: daemon.parts.server.connections == 0)
    assert len(driver.opened) == 1
    driver.gate.set()
    until(lambda: not driver.opened)
    with Client(daemon.socket, GEOMETRY, role="scheduler") as other:
        assert other.match(keys).length == 0


def test_the_client_shares_physical_memory_and_again_after_a_restart(
    driver: HostDriver, start: Start, tmp_path: Path
) -> None:
    """By descriptors it duplicates: registered once more with the next life of the daemon, closed with the client."""
    (tmp_path / "ssd").mkdir()
    ssd: dict[str, object] = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    daemon, files = start(ssd=ssd), open_files()
    made = [driver.allocate_physical(GRANULARITY_BYTES) for _ in range(2)]
    parts = [DeviceAllocation(0, GRANULARITY_BYTES, b"")] * 2
    sizes: dict[str, Any] = {"page_count": LAYOUT.page_count, "page_tokens": LAYOUT.page_tokens, "layout": by_plane()}
    with Client(daemon.socket, GEOMETRY) as client:
        for descriptors in ([], [made[0][0]], [descriptor for descriptor, _ in made] * 2):
            with pytest.raises(FlexKVError, match="one for each") as refused:
                client.register_device_memory(UUID, parts, **sizes, descriptors=descriptors)
            assert refused.value.code is ErrorCode.BAD_ARGUMENT
        memory = client.register_device_memory(UUID, parts, **sizes, descriptors=[each for each, _ in made])
        for descriptor, content in made:
            os.close(descriptor)
            content[:] = bytes(range(256)) * (GRANULARITY_BYTES // 256)
        keys = client.keys(TOKENS)
        assert client.save(keys, PAGES, memory, ack="ssd").wait(timeout_s=5).length == 8
        assert daemon.stop() == 0
        daemon = start(ssd=ssd)
        client.connect()
        for _, content in made:
            content[:] = bytes(GRANULARITY_BYTES)
        assert client.load(keys, PAGES, memory).wait(timeout_s=5).length == 8
        place = by_plane()[0]
        assert made[0][1][: place.page_bytes] == (bytes(range(256)) * 64)[: place.page_bytes]
    for _, content in made:
        content.close()
    daemon.stop()
    assert open_files() <= files
