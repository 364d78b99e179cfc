"""The arena pinned behind the open socket and let go with the drain, over the tests' own driver of the host."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flexkv_py.client import Client
from flexkvd.pinning import STEP
from flexkvd.state_line import state_line
from tests.tiers.host_driver import HostDriver

from .conftest import GEOMETRY, DaemonThread
from .on_device import PAGES, TOKENS, register, rows_in, run
from .test_lives import until

SEGMENT_BYTES, ARENA_BYTES = 4 << 20, 16 << 20


def report(daemon: DaemonThread) -> dict[str, Any]:
    found: dict[str, Any] = daemon.call(daemon.daemon.operator.readiness)
    return found


def pinned_bytes(driver: HostDriver) -> int:
    return sum(list(driver.pinned.values()))


def test_the_arena_is_pinned_from_the_start_on_and_nobody_waits_for_it(
    driver: HostDriver, start: Callable[..., DaemonThread]
) -> None:
    """Ready and served while nothing is pinned, `/readyz` says how far it is; then all is, and the metric says so."""
    driver.latch.clear()
    daemon = start()
    until(lambda: bool(report(daemon)["ready"]))
    assert report(daemon)["degraded"][STEP].startswith(f"0 of {ARENA_BYTES} bytes pinned")
    with Client(daemon.socket, GEOMETRY) as client:
        memory, _ = register(client, driver)
        assert client.save(client.keys(TOKENS), PAGES, memory).wait(timeout_s=5).length == 8
        driver.latch.set()
        until(lambda: STEP not in report(daemon)["degraded"])
    assert list(driver.pinned.values()) == [SEGMENT_BYTES] * 4
    assert f"flexkv_arena_pinned_bytes {ARENA_BYTES}\n" in daemon.call(daemon.daemon.operator.metrics_text).decode()
    assert daemon.call(daemon.parts.devices.status)["arena_pinned_bytes"] == ARENA_BYTES
    assert daemon.stop() == 0
    assert not driver.pinned


def test_nothing_is_pinned_ahead_of_what_is_populated(
    driver: HostDriver, start: Callable[..., DaemonThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver would populate it itself, on one thread and under its lock: each segment waits for its own."""
    populate, slices = threading.Semaphore(0), threading.Event()

    def slowly(segment: object, offset: int, length: int) -> None:
        populate.acquire()
        slices.set()

    monkeypatch.setattr("flexkv_tiers.memory.arena._populate_slice", slowly)
    daemon = start()
    for segment in range(1, 5):
        assert pinned_bytes(driver) == (segment - 1) * SEGMENT_BYTES
        assert not report(daemon)["ready"]
        populate.release()
        until(lambda count=segment: pinned_bytes(driver) == count * SEGMENT_BYTES)
    until(lambda: bool(report(daemon)["ready"]))


def test_a_drain_lets_go_of_all_that_no_copy_needs_while_the_loop_lives(
    driver: HostDriver, start: Callable[..., DaemonThread]
) -> None:
    """A save that runs keeps the segment it fills; the rest is let go at once, and that one when its copy has ended."""
    daemon = start(daemon={"drain_s": 20.0})
    until(lambda: pinned_bytes(driver) == ARENA_BYTES)
    with Client(daemon.socket, GEOMETRY) as client:
        memory, _ = register(client, driver)
        driver.gate.clear()
        ticket = client.save(client.keys(TOKENS), PAGES, memory)
        until(lambda: bool(daemon.call(daemon.parts.devices.guard.used)))
        used = daemon.call(daemon.parts.devices.guard.used)
        assert len(used) == 1
        driver.latch.clear()
        daemon.call(daemon.daemon.stop)
        until(lambda: STEP in report(daemon)["degraded"])
        assert report(daemon)["degraded"][STEP].endswith("still pinned")
        told = daemon.call(lambda: state_line(daemon.parts.readiness, daemon.parts.planner.state))
        assert told.startswith("draining: ")
        assert f"{STEP}: {ARENA_BYTES} of {ARENA_BYTES} bytes still pinned" in told
        client.ping()  # whatever the driver takes, the loop serves
        driver.latch.set()
        until(lambda: pinned_bytes(driver) == SEGMENT_BYTES)
        assert list(driver.pinned) == [daemon.parts.arena.segment_address(*used)]
        driver.gate.set()
        assert ticket.wait(timeout_s=5).length == 8
    daemon.join()
    assert daemon.status == 0
    assert not driver.pinned


def test_what_is_still_pinned_at_the_deadline_is_told_and_left_to_the_kernel(
    driver: HostDriver, start: Callable[..., DaemonThread], caplog: pytest.LogCaptureFixture
) -> None:
    """A driver that takes its time delays the end by the segment it is at, and by no other."""
    daemon = start(daemon={"drain_s": 0.2})
    until(lambda: pinned_bytes(driver) == ARENA_BYTES)
    driver.latch.clear()
    with caplog.at_level(logging.WARNING, "flexkvd.pinning"):
        daemon.call(daemon.daemon.stop)
        threading.Timer(0.6, driver.latch.set).start()
        daemon.join()
    assert daemon.status == 0
    assert pinned_bytes(driver) == ARENA_BYTES - SEGMENT_BYTES
    assert f"{ARENA_BYTES - SEGMENT_BYTES} of {ARENA_BYTES} bytes of the arena are still pinned" in caplog.text


@pytest.mark.parametrize("midway", [False, True])
def test_a_drain_that_is_resumed_pins_again(
    driver: HostDriver, start: Callable[..., DaemonThread], midway: bool
) -> None:
    """Whether all was let go or the driver is still at it; copies are right all the while."""
    daemon = start()
    until(lambda: pinned_bytes(driver) == ARENA_BYTES)
    operations = daemon.parts.operations
    with Client(daemon.socket, GEOMETRY) as client:
        memory, content = register(client, driver)
        content[:] = bytes(range(256)) * (len(content) // 256)
        keys = client.keys(TOKENS)
        assert client.save(keys, PAGES, memory).wait(timeout_s=5).length == 8
        if midway:
            driver.latch.clear()
        assert run(daemon, operations.drain(5)) == 0
        if not midway:
            until(lambda: not driver.pinned)
            assert STEP not in report(daemon)["degraded"]
        run(daemon, operations.resume())
        before = rows_in(content)
        content[:] = bytes(len(content))
        ticket = client.load(keys, PAGES, memory)
        driver.latch.set()
        assert ticket.wait(timeout_s=5).length == 8
        assert rows_in(content) == before
        until(lambda: pinned_bytes(driver) == ARENA_BYTES)


def test_nothing_is_let_go_under_a_copy(driver: HostDriver, start: Callable[..., DaemonThread]) -> None:
    """Loads and saves go on while the arena is let go and pinned again, over and over; the driver asserts it."""
    driver.unpin_s = 0.005
    daemon = start()
    pinning = daemon.parts.pinning
    with Client(daemon.socket, GEOMETRY) as client:
        memory, content = register(client, driver)
        for turn in range(1, 31):
            daemon.call(pinning.let_go if turn % 2 else pinning.begin)
            keys = client.keys([turn, *TOKENS[1:]])
            content[:] = bytes([turn]) * len(content)
            saved = rows_in(content)
            assert client.save(keys, PAGES, memory).wait(timeout_s=5).length == 8
            content[:] = bytes(len(content))
            assert client.load(keys, PAGES, memory).wait(timeout_s=5).length == 8
            assert rows_in(content) == saved
    until(lambda: pinned_bytes(driver) == ARENA_BYTES)
    assert driver.calls.count("unpin") > 4


def test_an_arena_that_cannot_be_pinned_is_served_all_the_same(
    driver: HostDriver, start: Callable[..., DaemonThread]
) -> None:
    """Ready, with the reason and its cure for as long as it lasts; a resumed drain tries again."""
    driver.refuse["pin"] = 2
    daemon = start()
    until(lambda: "LimitMEMLOCK" in report(daemon)["degraded"].get(STEP, ""))
    until(lambda: bool(report(daemon)["ready"]))
    with Client(daemon.socket, GEOMETRY) as client:
        memory, _ = register(client, driver)
        assert client.save(client.keys(TOKENS), PAGES, memory).wait(timeout_s=5).length == 8
    del driver.refuse["pin"]
    run(daemon, daemon.parts.operations.drain(5))
    run(daemon, daemon.parts.operations.resume())
    until(lambda: pinned_bytes(driver) == ARENA_BYTES)


def test_without_a_driver_nothing_is_pinned_and_nothing_awaited(
    start: Callable[..., DaemonThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real branch of a machine without libcuda: no step, no bytes, a drain that waits for nothing of it."""
    monkeypatch.setattr("flexkv_tiers.cuda.driver.LIBRARY", "libcuda-of-nobody.so.1")
    daemon = start()
    until(lambda: bool(report(daemon)["ready"]))
    assert report(daemon)["degraded"] == {}
    assert "flexkv_arena_pinned_bytes 0\n" in daemon.call(daemon.daemon.operator.metrics_text).decode()
    assert daemon.stop() == 0
