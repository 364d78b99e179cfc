"""Saves, matches and loads of real clients against a whole daemon: bytes, progress, fences, lifetimes."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flexkv_py.client import Client
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.facts import facts_of

from .conftest import GEOMETRY, DaemonThread, Worker

TOKENS = list(range(16 * 8))


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(FlexKVError) as caught:
        call()
    return caught.value.code


def test_what_one_worker_saved_another_loads(connect: Callable[..., Client]) -> None:
    """Blocks saved from one memory come back with the same bytes into other pages of another memory."""
    first, second = Worker(connect()), Worker(connect())
    first.fill(1)
    keys = first.client.keys(TOKENS)
    saved = first.client.save(keys, first.pages(3, 8), first.memory).wait(timeout_s=5)
    assert [outcome.value for outcome in saved.outcomes] == ["stored"] * 8
    found = second.client.match(keys)
    assert (found.length, [(run.tier, run.count) for run in found.runs]) == (8, [("dram", 8)])
    loaded = second.client.load(keys, second.pages(20, 8), second.memory).wait(timeout_s=5)
    assert [outcome.value for outcome in loaded.outcomes] == ["loaded"] * 8
    for block in range(8):
        assert second.block_bytes(20 + block) == first.block_bytes(3 + block)


def test_a_load_is_waited_for_chunk_by_chunk(connect: Callable[..., Client]) -> None:
    """Waiting for each chunk in turn ends with all of them, and the bytes are there."""
    worker = Worker(connect())
    worker.fill(2)
    keys = worker.client.keys(TOKENS)
    worker.client.save(keys, worker.pages(0, 8), worker.memory).wait(timeout_s=5)
    ticket = worker.client.load(keys, worker.pages(30, 8), worker.memory)
    assert GEOMETRY.chunk_count > 1
    for chunk in range(GEOMETRY.chunk_count):
        progress = ticket.wait(chunk=chunk, timeout_s=5)
        assert progress.done or progress.chunks > chunk
    progress = ticket.wait(timeout_s=5)
    assert (progress.done, progress.length) == (True, 8)
    assert worker.block_bytes(37) == worker.block_bytes(7)


def test_a_time_out_of_range_names_its_limit(connect: Callable[..., Client]) -> None:
    """Times too long are refused with the seconds asked for, and the key and value of the limit."""
    worker = Worker(connect())
    [key] = worker.client.keys(TOKENS[:16])
    ticket = worker.client.save([key], worker.pages(0, 1), worker.memory)
    for call, limit in (
        (lambda: worker.client.match([key], hold_s=700), "[limits] hold_s_max is 600 s"),
        (lambda: worker.client.prefetch([key], deadline_s=700), "[limits] deadline_s_max is 600 s"),
    ):
        with pytest.raises(FlexKVError, match="is 700000, that is 700 s: use 0 to 600000") as caught:
            call()
        assert caught.value.code is ErrorCode.BAD_ARGUMENT
        assert limit in caught.value.message
    assert ticket.wait(timeout_s=5).length == 1


def test_one_page_takes_one_block_only(connect: Callable[..., Client]) -> None:
    """A load with a page for two blocks is refused and names it; a save may read a page twice."""
    worker = Worker(connect())
    keys = worker.client.keys(TOKENS[:32])
    once = worker.pages(3, 1)
    saved = worker.client.save(keys, once + once, worker.memory).wait(timeout_s=5)
    assert saved.length == 2
    with pytest.raises(FlexKVError, match=f"page {once[0]} is listed twice") as caught:
        worker.client.load(keys, once + once, worker.memory)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert worker.client.load(keys, worker.pages(8, 2), worker.memory).wait(timeout_s=5).length == 2


def test_a_missing_block_cuts_the_load_short(connect: Callable[..., Client]) -> None:
    """A load of more than is there says which keys are missing, and how long the usable prefix is."""
    worker = Worker(connect())
    keys = worker.client.keys(TOKENS)
    worker.client.save(keys[:3], worker.pages(0, 3), worker.memory).wait(timeout_s=5)
    progress = worker.client.load(keys, worker.pages(8, 8), worker.memory).wait(timeout_s=5)
    assert [outcome.value for outcome in progress.outcomes] == ["loaded"] * 3 + ["miss"] * 5
    assert progress.length == 3


def test_bad_requests_get_coded_errors_and_the_session_lives(connect: Callable[..., Client]) -> None:
    """Each kind of nonsense has its own code, and the next request is served as if nothing had been."""
    worker = Worker(connect())
    client, keys = worker.client, worker.client.keys(TOKENS)
    outside = [worker.layout.page_count - 1, worker.layout.page_count]
    assert code_of(lambda: client.save(keys[:1], outside, worker.memory)) is ErrorCode.PAGE_OUT_OF_RANGE
    assert code_of(lambda: client.load([keys[0]] * 2, worker.pages(0, 2), worker.memory)) is ErrorCode.DUPLICATE_KEY
    assert code_of(lambda: client.fence(worker.memory, outside)) is ErrorCode.PAGE_OUT_OF_RANGE
    save = lambda ack: client.save(keys, worker.pages(0, 8), worker.memory, ack=ack)  # noqa: E731
    assert code_of(lambda: save("ssd")) is ErrorCode.TIER_UNAVAILABLE
    assert code_of(lambda: save("tape")) is ErrorCode.BAD_ARGUMENT
    assert code_of(lambda: client.flush("ssd")) is ErrorCode.TIER_UNAVAILABLE
    assert code_of(lambda: client.match(keys, shards=[1, 1])) is ErrorCode.BAD_ARGUMENT
    assert code_of(lambda: client.match(keys, hold_s=1e6)) is ErrorCode.BAD_ARGUMENT
    client.ping()


def test_a_lease_is_released_once(connect: Callable[..., Client]) -> None:
    """The second release of a lease is an unknown lease."""
    worker = Worker(connect())
    keys = worker.client.keys(TOKENS)
    worker.client.save(keys, worker.pages(0, 8), worker.memory).wait(timeout_s=5)
    lease = worker.client.match(keys, hold_s=60).lease
    assert lease is not None
    lease.release()
    assert code_of(lease.release) is ErrorCode.UNKNOWN_LEASE


def test_unregistered_memory_is_unknown_and_closed(daemon: DaemonThread, connect: Callable[..., Client]) -> None:
    """After unregister the daemon maps nothing of the worker any more."""
    worker = Worker(connect())
    keys = worker.client.keys(TOKENS)
    [mapping] = daemon.mappings()
    worker.client.save(keys, worker.pages(0, 8), worker.memory)
    worker.memory.unregister()
    assert mapping.closed
    assert code_of(lambda: worker.client.load(keys, worker.pages(0, 8), worker.memory)) is ErrorCode.UNKNOWN_MEMORY
    assert daemon.mappings() == []


def test_a_lost_session_leaves_nothing_behind(daemon: DaemonThread, connect: Callable[..., Client]) -> None:
    """Closing the socket in the middle of a save ends leases and tickets at once, memory after its last copy."""
    worker = Worker(connect())
    keys = worker.client.keys(TOKENS)
    worker.client.save(keys, worker.pages(0, 8), worker.memory).wait(timeout_s=5)
    assert worker.client.match(keys, hold_s=60).lease is not None
    more = worker.client.keys(list(range(1000, 1000 + 16 * 32)))
    worker.client.save(more, worker.pages(0, 32), worker.memory)
    worker.client.close()
    end = time.monotonic() + 1.0
    while daemon.call(lambda: len(daemon.parts.sessions.by_number)) and time.monotonic() < end:
        time.sleep(0.01)
    facts = daemon.call(lambda: facts_of(daemon.parts.planner.state))
    assert (facts["sessions"], facts["leases"], facts["tickets"]) == (0, 0, 0)
    assert daemon.call(lambda: len(daemon.parts.sessions.by_number)) == 0


def test_three_threads_share_a_client(connect: Callable[..., Client]) -> None:
    """Save, match and load of three threads on one socket do not mix up."""
    worker = Worker(connect())
    worker.fill(3)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                keys = worker.client.keys([number * 100 + turn] * 16)
                worker.client.save(keys, worker.pages(number, 1), worker.memory).wait(timeout_s=5)
                loaded = worker.client.load(keys, worker.pages(40 + number, 1), worker.memory).wait(timeout_s=5)
                assert loaded.length == 1
                assert worker.block_bytes(40 + number) == worker.block_bytes(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_other_shards_and_tenants_see_nothing(connect: Callable[..., Client]) -> None:
    """A prefix saved in shard 0 is not usable in shard 1, nor for another tenant or epoch."""
    worker = Worker(connect())
    keys = worker.client.keys(TOKENS)
    worker.client.save(keys, worker.pages(0, 8), worker.memory).wait(timeout_s=5)
    assert connect().match(keys).length == 8
    assert connect(shard=1).match(keys).length == 0
    assert connect(shard=1).match(keys, shards=[0]).length == 8
    assert connect().match(keys, shards=[0, 1]).length == 0
    assert connect(tenant="other").match(keys).length == 0
    assert connect(epoch=1).match(keys).length == 0


def test_reset_forgets_a_namespace(connect: Callable[..., Client]) -> None:
    """After reset of the epoch nothing of it matches."""
    worker = Worker(connect())
    keys = worker.client.keys(TOKENS)
    worker.client.save(keys, worker.pages(0, 8), worker.memory).wait(timeout_s=5)
    worker.client.reset(0)
    assert worker.client.match(keys).length == 0


def test_a_finished_ticket_is_forgotten_after_its_successors(start: Callable[..., DaemonThread]) -> None:
    """Finished tickets can be asked about until the configured number has finished since."""
    daemon = start(limits={"tickets_kept_per_session_max": 2})
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client)
        keys = client.keys(TOKENS)
        tickets = [client.save(keys[:1], worker.pages(0, 1), worker.memory) for _ in range(3)]
        assert tickets[2].wait(timeout_s=5).done
        assert code_of(lambda: tickets[0].wait(timeout_s=5)) is ErrorCode.UNKNOWN_TICKET


def test_blocks_come_back_from_disk_after_a_restart(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """What was acknowledged at `ssd` is loaded, with its bytes, from the next life of the daemon."""
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    (tmp_path / "ssd").mkdir()
    daemon = start(ssd=ssd)
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client)
        worker.fill(4)
        expected = worker.block_bytes(5)
        keys = client.keys(TOKENS)
        saved = client.save(keys, worker.pages(0, 8), worker.memory, ack="ssd").wait(timeout_s=5)
        assert [outcome.value for outcome in saved.outcomes] == ["stored"] * 8
    assert daemon.stop() == 0
    daemon = start(ssd=ssd)
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client)
        end = time.monotonic() + 5
        while client.match(keys).length < 8 and time.monotonic() < end:
            time.sleep(0.01)
        assert [(run.tier, run.count) for run in client.match(keys).runs] == [("ssd", 8)]
        loaded = client.load(keys, worker.pages(8, 8), worker.memory).wait(timeout_s=5)
        assert loaded.length == 8
        assert worker.block_bytes(13) == expected
