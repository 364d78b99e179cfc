"""Byte workers as real processes: what a call promises, and what dies with whom."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from flexkv_py.core.messages import Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.byteworkers import ByteWorker
from flexkv_tiers.byteworkers.child import NICENESS
from flexkv_tiers.byteworkers.worker import RESPAWN_DELAY_S_MAX, patient_threads, respawn_delay_s
from flexkv_tiers.memory import Arena
from tests.tiers.patient_worker import FRAME_BYTES, Scribble

MODULE = "tests.tiers.patient_worker"


@pytest.fixture
def arena():
    arena = Arena(1 << 20, 2, huge_pages=False)
    yield arena
    arena.close()


@asynccontextmanager
async def running(arena, *, threads=2, let_go_s=5.0, options=b""):
    worker = ByteWorker(
        MODULE, options, segment_fds=arena.segment_fds, segment_bytes=1 << 20, threads=threads, let_go_s=let_go_s
    )
    await worker.start()
    try:
        yield worker
    finally:
        await worker.close()


async def replies_of(worker, request, timeout_s=10.0, *, patient=False):
    raw = msgspec.msgpack.encode(request)
    return [reply async for reply in worker.call(raw, timeout_s=timeout_s, patient=patient)]


def exists(pid):
    """Whether the process is there and not dead, whoever is to reap it."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_a_call_streams_its_replies_and_writes_to_the_arena(arena):
    """Replies come in order, and the bytes the child wrote are in the daemon's arena, in every segment."""

    async def scene():
        async with running(arena) as worker:
            assert await replies_of(worker, Scribble(turns=3)) == [b"0", b"1", b"2"]
            await replies_of(worker, Scribble(frame=256, turns=7))
            assert worker.running == 0

    asyncio.run(scene())
    assert bytes(arena.view(0, FRAME_BYTES)) == b"\x03" * FRAME_BYTES
    assert bytes(arena.view(256, FRAME_BYTES)) == b"\x07" * FRAME_BYTES


def test_a_bug_in_the_handler_is_raised_with_its_traceback(arena):
    """A handler that raises makes the call raise, and the child goes on serving."""

    async def scene():
        async with running(arena) as worker:
            with pytest.raises(RuntimeError, match="ValueError: no such luck"):
                await replies_of(worker, Scribble(raises=True))
            assert await replies_of(worker, Scribble()) == [b"0"]
            assert worker.deaths == 0

    asyncio.run(scene())


def test_a_timeout_stops_the_call(arena):
    """After its timeout the child is asked to stop, and its last reply says so."""

    async def scene():
        async with running(arena) as worker:
            replies = await replies_of(worker, Scribble(turns=1000, pause_s=0.01), timeout_s=0.2)
            assert replies[-1] == b"stopped"
            assert worker.deaths == 0

    asyncio.run(scene())


def test_more_calls_than_threads_wait_their_turn(arena):
    """With one thread two calls run one after the other; one that cannot begin in time is LATE."""

    async def scene():
        async with running(arena, threads=1) as worker:
            await replies_of(worker, Scribble())  # it is up
            long = asyncio.create_task(replies_of(worker, Scribble(turns=20, pause_s=0.02)))
            await asyncio.sleep(0.05)
            with pytest.raises(TierFault, match="stayed busy") as caught:
                await replies_of(worker, Scribble(), timeout_s=0.05)
            assert caught.value.fault is Fault.LATE
            assert await replies_of(worker, Scribble()) == [b"0"]
            assert len(await long) == 20

    asyncio.run(scene())


def test_patient_calls_leave_a_thread_to_the_others(arena):
    """A flood of patient calls on two threads: an impatient one runs at once, while most of the flood still waits."""

    async def scene():
        async with running(arena) as worker:
            await replies_of(worker, Scribble())  # it is up
            flood = [
                asyncio.create_task(replies_of(worker, Scribble(frame=256, turns=10, pause_s=0.02), patient=True))
                for _ in range(5)
            ]
            await asyncio.sleep(0.05)
            for _ in range(3):
                assert await replies_of(worker, Scribble()) == [b"0"]
            assert sum(each.done() for each in flood) <= 2
            assert [len(replies) for replies in await asyncio.gather(*flood)] == [10] * 5
            assert worker.running == 0

    asyncio.run(scene())
    assert [patient_threads(threads) for threads in (1, 2, 3, 4, 8)] == [1, 1, 2, 3, 6]


def test_a_storm_of_kills_never_lets_a_dead_child_write(arena):
    """SIGKILL after SIGKILL in mid-call: every call faults, and no frame changes once its call has ended."""

    async def scene():
        async with running(arena) as worker:
            for turn in range(5):
                await replies_of(worker, Scribble())
                calls = [
                    asyncio.create_task(replies_of(worker, Scribble(frame=frame, turns=10**6, pause_s=0.0002)))
                    for frame in (1, 2)
                ]
                await asyncio.sleep(0.02 + 0.005 * turn)
                os.kill(worker.pid, signal.SIGKILL)
                for ended in asyncio.as_completed(calls):
                    with pytest.raises(TierFault) as caught:
                        await ended
                    assert caught.value.fault is Fault.IO
                for frame in (1, 2):
                    arena.view(frame, FRAME_BYTES)[:] = bytes(FRAME_BYTES)
                await asyncio.sleep(0.01)
                assert not any(any(arena.view(frame, FRAME_BYTES)) for frame in (1, 2))
            assert worker.deaths == 5
            assert worker.running == 0

    asyncio.run(scene())


def test_an_idle_child_costs_nothing(arena):
    """A child that waits for calls is not woken once: none of its threads looks whether there is something to do."""

    async def scene():
        async with running(arena, threads=8) as worker:
            await asyncio.gather(*(replies_of(worker, Scribble()) for _ in range(8)))
            await asyncio.sleep(0.3)  # until its threads have settled, also on a busy machine
            before = wakes_of(worker.pid)
            await asyncio.sleep(1.0)
            assert wakes_of(worker.pid) - before <= 2

    asyncio.run(scene())


def wakes_of(pid):
    """How often threads of the process have begun to wait, so far."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        [line] = [line for line in status.read_text().splitlines() if line.startswith("voluntary_ctxt_switches")]
        count += int(line.split()[1])
    return count


@pytest.mark.parametrize("how", ["cancelled", "closed meanwhile", "closed already"])
def test_a_worker_closed_around_its_start_leaves_no_process(arena, how):
    """Closed before its start, during it, or after a start that was cancelled: no child is left, and none comes."""

    async def scene():
        others = psutil.Process().children()
        worker = ByteWorker(MODULE, b"", segment_fds=arena.segment_fds, segment_bytes=1 << 20, threads=1, let_go_s=5.0)
        if how == "closed already":
            await worker.close()
        starting = asyncio.create_task(worker.start())
        if how != "closed already":
            await asyncio.sleep(0)  # the child is being made
            await asyncio.sleep(0)
            if how == "cancelled":
                starting.cancel()
            await worker.close()
        await asyncio.wait([starting])
        assert worker.pid is None
        assert psutil.Process().children() == others
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_a_call_that_is_left_early_ends_only_when_its_frames_are_free(arena, how):
    """Leaving a call returns after the child has let go: the frame does not change any more."""

    async def scene():
        async with running(arena) as worker:
            request = msgspec.msgpack.encode(Scribble(turns=100_000, pause_s=0.001))

            async def leave_early():
                async with aclosing(worker.call(request, timeout_s=10.0)) as replies:
                    async for reply in replies:
                        if reply == b"5" and how == "close":
                            return

            leaving = asyncio.create_task(leave_early())
            if how == "cancel":
                await asyncio.sleep(0.5)
                leaving.cancel()
            await asyncio.wait([leaving])
            arena.view(0, FRAME_BYTES)[:] = bytes(FRAME_BYTES)
            await asyncio.sleep(0.05)
            assert not any(arena.view(0, FRAME_BYTES))
            assert worker.running == 0
            assert await replies_of(worker, Scribble()) == [b"0"]

    asyncio.run(scene())


def test_a_call_given_up_about_when_it_begins_costs_nobody_anything(arena):
    """Stopped in the turn of the loop in which it began, or one of the next, a call ends, and the child serves on."""

    async def scene():
        async with running(arena, threads=1) as worker:
            for turns in range(8):
                call = asyncio.create_task(replies_of(worker, Scribble(turns=100_000, pause_s=0.001)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
                async with asyncio.timeout(5.0):
                    await asyncio.wait([call])
                assert worker.running == 0
            assert await replies_of(worker, Scribble()) == [b"0"]
            assert worker.deaths == 0

    asyncio.run(scene())


def test_a_killed_child_fails_its_calls_after_it_is_reaped(arena):
    """SIGKILL in mid-call: the fault comes when the process is gone, and the next call has a new child."""

    async def scene():
        async with running(arena) as worker:
            await replies_of(worker, Scribble())
            pid = worker.pid
            call = asyncio.create_task(replies_of(worker, Scribble(turns=100_000, pause_s=0.001)))
            await asyncio.sleep(0.1)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(TierFault) as caught:
                await call
            assert caught.value.fault is Fault.IO
            assert not psutil.pid_exists(pid)  # not even to be reaped
            assert await replies_of(worker, Scribble(turns=2)) == [b"0", b"1"]
            assert worker.deaths == 1
            assert worker.pid not in (None, pid)

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["deaf", "hung"])
def test_a_child_that_does_not_let_go_is_killed(arena, how):
    """A child that ignores being stopped, or hangs as a whole, is killed `let_go_s` later."""

    async def scene():
        async with running(arena, let_go_s=0.3) as worker:
            await replies_of(worker, Scribble())
            pid = worker.pid
            if how == "hung":
                os.kill(pid, signal.SIGSTOP)
            start = time.monotonic()
            with pytest.raises(TierFault):
                await replies_of(worker, Scribble(turns=100_000, pause_s=0.001, deaf=True), timeout_s=0.2)
            assert 0.4 < time.monotonic() - start < 3.0
            assert not exists(pid)
            assert await replies_of(worker, Scribble()) == [b"0"]

    asyncio.run(scene())


def test_a_child_that_cannot_start_is_not_restarted_for_ever_at_once(arena):
    """A crash loop slows down, and calls get a fault within their deadline."""

    async def scene():
        async with running(arena, options=b"crash") as worker:
            for _ in range(3):
                with pytest.raises(TierFault):
                    await replies_of(worker, Scribble(), timeout_s=0.4)
            assert 1 <= worker.deaths <= 5

    asyncio.run(scene())


def test_respawn_delays_grow_to_a_limit():
    """The first restart is at once, the next ones wait twice as long each, up to the limit."""
    delays = [respawn_delay_s(lives) for lives in range(1, 40)]
    assert delays[:4] == [0.0, 0.1, 0.2, 0.4]
    assert delays == sorted(delays)
    assert delays[-1] == RESPAWN_DELAY_S_MAX


def test_the_child_lets_the_daemon_run_first(arena):
    """It is nicer than its daemon, and does not take a core from anybody by waking up."""

    async def scene():
        async with running(arena) as worker:
            await replies_of(worker, Scribble())
            nicer = os.getpriority(os.PRIO_PROCESS, worker.pid) - os.getpriority(os.PRIO_PROCESS, 0)
            assert nicer == min(NICENESS, 19 - os.getpriority(os.PRIO_PROCESS, 0))
            assert os.sched_getscheduler(worker.pid) == os.SCHED_BATCH

    asyncio.run(scene())


def test_the_child_outlives_signals_meant_for_the_daemon(arena):
    """SIGINT and SIGTERM to the whole group leave the child alone: the daemon drains through it."""

    async def scene():
        async with running(arena) as worker:
            await replies_of(worker, Scribble())
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(worker.pid, number)
            assert await replies_of(worker, Scribble()) == [b"0"]
            assert worker.deaths == 0

    asyncio.run(scene())


def test_a_closed_worker_is_down_and_leaves_no_process(arena):
    """Close fails what runs, reaps the child, and later calls are DOWN; closing twice is no error."""

    async def scene():
        async with running(arena) as worker:
            await replies_of(worker, Scribble())
            pid = worker.pid
            call = asyncio.create_task(replies_of(worker, Scribble(turns=100_000, pause_s=0.001)))
            await asyncio.sleep(0.05)
            await worker.close()
            await worker.close()
            with pytest.raises(TierFault):
                await call
            assert not exists(pid)
            with pytest.raises(TierFault) as caught:
                await replies_of(worker, Scribble())
            assert caught.value.fault is Fault.DOWN

    asyncio.run(scene())


DAEMON = f"""
import asyncio, msgspec
from flexkv_tiers.byteworkers import ByteWorker
from flexkv_tiers.memory import Arena
from tests.tiers.patient_worker import Scribble

async def main():
    arena = Arena(1 << 20, 1, huge_pages=False)
    worker = ByteWorker("{MODULE}", b"", segment_fds=arena.segment_fds, segment_bytes=1 << 20, threads=1, let_go_s=9)
    await worker.start()
    request = msgspec.msgpack.encode(Scribble(turns=1_000_000, pause_s=0.001))
    async for reply in worker.call(request, timeout_s=60):
        if reply == b"3":
            print(worker.pid, flush=True)

asyncio.run(main())
"""


def test_the_child_dies_with_its_daemon():
    """When the daemon is killed in mid-call, its byte worker is gone within a moment."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, env=environment)
    with daemon:
        child = int(daemon.stdout.readline())
        assert exists(child)
        daemon.kill()
    end = time.monotonic() + 2.0
    while exists(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not exists(child)
