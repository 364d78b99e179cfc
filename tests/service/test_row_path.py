"""The row path end to end: a worker reads rows where they lie in the daemon's arena, granted, revoked, acknowledged."""

import asyncio
import mmap
import os
import socket
import struct
import subprocess
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flexkv_py.client import Client, ReplayRefused
from flexkv_py.client.aio import AsyncClient
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import Detach, Done, MapArena, Segments

from .conftest import GEOMETRY, DaemonThread, Worker
from .rows import CHUNKS, SECONDS_MAX, Table, attach, chunk_of, follow, readers, refused, save, tokens
from .test_protocol import Stranger

NOBODY = 65534


def test_rows_are_read_where_they_lie(daemon: DaemonThread, connect: Callable[..., Client]) -> None:
    """Every chunk of every block is granted, and its bytes in the mapped arena are those that were saved."""
    client = connect()
    worker = Worker(client)
    worker.fill(1)
    keys = save(worker, 1, 8)
    request, table = attach(client, 7, keys[:6])
    follow(client, request, table, lambda: len(table.frames) == 6 * CHUNKS)
    request.extend(keys[6:])
    assert request.block_count == 8
    follow(client, request, table, lambda: len(table.frames) == 8 * CHUNKS)
    for block, chunk in table.frames:
        assert table.read(block, chunk) == chunk_of(worker, block, chunk)
    request.ack(table.version)
    request.detach()
    assert client.page_changes() == []
    assert refused(ErrorCode.UNKNOWN_REQUEST, client._ask, Detach(0, 7), Done)


def test_blocks_saved_later_are_granted_when_they_come(daemon: DaemonThread, connect: Callable[..., Client]) -> None:
    """A request may name blocks that are in no tier yet: their rows are absent until another worker saves them."""
    client, other = connect(), connect()
    worker = Worker(other)
    worker.fill(2)
    request, table = attach(client, 1, client.keys(tokens(2, 3)))
    table.apply(request.pages())
    assert table.frames == {}
    save(worker, 2, 3)
    follow(client, request, table, lambda: len(table.frames) == 3 * CHUNKS)
    assert table.read(2, CHUNKS - 1) == chunk_of(worker, 2, CHUNKS - 1)


def test_a_long_request_is_attached_in_slices(daemon: DaemonThread, connect: Callable[..., Client]) -> None:
    """More blocks than one message takes; and where a later slice is refused, nothing of the request stays attached."""
    client = connect()
    keys = client.keys(tokens(6, 600))
    request = client.attach(1, keys)
    assert request.block_count == 600
    request.detach()
    refused(ErrorCode.DUPLICATE_KEY, client.attach, 1, [*keys, keys[0]])
    client.ping()
    assert daemon.call(lambda: daemon.parts.planner.state.rows.by_id) == {}
    refused(ErrorCode.BAD_ARGUMENT, client.attach, 1, [])
    again = client.attach(1, keys[:3])
    again.extend(keys[3:])
    assert again.block_count == 600


def test_a_thread_that_waits_for_pages_holds_up_no_other(daemon: DaemonThread, connect: Callable[..., Client]) -> None:
    """While one thread waits for page changes, others call on the same connection; the change wakes it."""
    client, worker = connect(), Worker(connect())
    worker.fill(5)
    request, table = attach(client, 3, client.keys(tokens(5, 1)))
    table.apply(request.pages())
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.wait_for_pages, SECONDS_MAX)
        for _ in range(50):
            client.ping()
        assert not waiting.done()
        save(worker, 5, 1)
        assert waiting.result()
    assert [pages.version for pages in request.pages()] == [table.version + 1]
    assert not client.wait_for_pages(0.01)


def test_an_asyncio_client_reads_rows_too(daemon: DaemonThread, connect: Callable[..., Client]) -> None:
    """The same life of a request on a loop: attach, wait, read, ack, report, be refused, detach."""
    worker = Worker(connect())
    worker.fill(3)
    save(worker, 3, 4)

    async def scene() -> None:
        async with AsyncClient(daemon.socket, GEOMETRY) as client:
            keys = client.keys(tokens(3, 4))
            request = await client.attach(5, keys[:2])
            table = Table(await client.map_arena())
            await request.extend(keys[2:])
            while len(table.frames) < 4 * CHUNKS:
                assert await client.wait_for_pages(SECONDS_MAX)
                table.apply(request.pages())
            assert all(table.read(*spot) == chunk_of(worker, *spot) for spot in table.frames)
            request.ack(table.version)
            client.report(struct.pack("<4I", 5, 0, 1, 9))
            await client.ping()
            assert client.page_changes() == []
            await request.extend(client.keys(tokens(3, 5))[4:])
            await client.ping()
            client.page_changes()
            client.report(absents=struct.pack("<3I", 5, 4, 0))
            assert await client.wait_for_pages(SECONDS_MAX)
            assert [type(message) for message in client.poll()] == [ReplayRefused]
            await request.detach()

    asyncio.run(scene())
    assert daemon.call(lambda: dict(daemon.parts.row_path.traffic.messages)) == {"ack": 1, "report": 2}


def test_an_asyncio_request_ends_with_its_connection(daemon: DaemonThread, connect: Callable[..., Client]) -> None:
    """Whoever waits is told at once, the rows stay readable, and the daemon hears on the next connection who let go."""
    worker = Worker(connect())
    worker.fill(4)
    save(worker, 4, 2)

    async def scene() -> None:
        async with AsyncClient(daemon.socket, GEOMETRY) as client:
            request = await client.attach(5, client.keys(tokens(4, 2)))
            table = Table(await client.map_arena())
            while not table.frames:
                await client.wait_for_pages(SECONDS_MAX)
                table.apply(request.pages())
            waiting = asyncio.create_task(client.wait_for_pages(SECONDS_MAX))
            await asyncio.sleep(0)
            drop_connections(daemon)
            with pytest.raises(FlexKVError) as lost:
                await waiting
            assert lost.value.code is ErrorCode.DAEMON_LOST
            refused(ErrorCode.DAEMON_LOST, request.pages)
            refused(ErrorCode.DAEMON_LOST, request.ack, table.version)
            assert all(table.read(*spot) == chunk_of(worker, *spot) for spot in table.frames)
            await client.connect()
            again = await client.attach(5, client.keys(tokens(4, 2)))
            assert readers(daemon) == 2
            await request.detach()
            await client.ping()
            assert readers(daemon) == 1
            assert await client.map_arena() is table.arena
            await again.detach()

    asyncio.run(scene())


def drop_connections(daemon: DaemonThread) -> None:
    """Close every connection, as a daemon in trouble might."""
    daemon.call(lambda: [session.connection.close() for session in list(daemon.parts.sessions.by_number.values())])


class TestMapping:
    """What a worker can do with the descriptors it is handed: read, and nothing else."""

    @pytest.fixture
    def segment(self, daemon: DaemonThread) -> Iterator[int]:
        """The first segment's descriptor, as it comes over the socket."""
        stranger = Stranger(daemon.socket).greet()
        stranger.say(MapArena(5))
        message, descriptors = receive_with_descriptors(stranger)
        assert (message.count, message.total, message.writable) == (4, 4, False)
        yield descriptors[0]
        for descriptor in descriptors:
            os.close(descriptor)
        stranger.socket.close()

    def test_it_cannot_be_mapped_or_made_writable(self, segment: int) -> None:
        """Neither a writable mapping, nor a write, nor truncation; also for the daemon's own user."""
        with pytest.raises(PermissionError):
            mmap.mmap(segment, 4096)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(segment, b"x", 0)
        with pytest.raises(OSError, match=r"Invalid argument|Operation not permitted"):
            os.ftruncate(segment, 0)
        assert len(mmap.mmap(segment, 4096, mmap.MAP_SHARED, mmap.PROT_READ)) == 4096

    @pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
    def test_another_user_cannot_reopen_it_writable(self, segment: int) -> None:
        """The memfd has mode 0600: a worker of another uid is refused by the kernel, not by us."""
        command = ["/bin/sh", "-c", "exec 3<>/proc/self/fd/$1", "sh", str(segment)]
        ended = subprocess.run(command, pass_fds=[segment], user=NOBODY, capture_output=True, text=True, check=False)
        assert ended.returncode != 0
        assert "Permission denied" in ended.stderr
        assert subprocess.run(command, pass_fds=[segment], check=False).returncode == 0  # the daemon's user may

    def test_writable_ones_are_refused_with_both_cures(self, connect: Callable[..., Client]) -> None:
        """A device that cannot pin read-only memory is told what would help: another device, or a shared group."""
        refusal = refused(ErrorCode.UNSUPPORTED, connect().map_arena, writable=True)
        assert "HOST_REGISTER_READ_ONLY_SUPPORTED" in refusal.message
        assert 'arena = "shared"' in refusal.message

    def test_a_large_arena_comes_in_several_messages(self, start: Callable[..., DaemonThread]) -> None:
        """More segments than go beside one message, each mapped once: later calls take the same mapping."""
        daemon = start(dram={"bytes": "70MiB", "segment_bytes": "1MiB"})
        with Client(daemon.socket, GEOMETRY) as client:
            arena = client.map_arena()
            assert (len(arena.segments), arena.segment_bytes) == (70, 1 << 20)
            assert client.map_arena() is arena
            mark = daemon.call(lambda: daemon.parts.arena.view(69 * 256, 4096))
            mark[:5] = b"hello"
            assert bytes(arena.view(69 * 256, 5)) == b"hello"
            mark.release()
            refused(ErrorCode.BAD_ARGUMENT, arena.view, 70 * 256, 5)
            refused(ErrorCode.BAD_ARGUMENT, client._ask, MapArena(0), Segments)


def receive_with_descriptors(stranger: Stranger) -> tuple[Any, list[int]]:
    data, ancillary, _, _ = stranger.socket.recvmsg(65536, socket.CMSG_SPACE(256))
    packed = b"".join(content for _, _, content in ancillary)
    stranger.feed(data)
    return stranger.hear(), list(array("i", packed))


class TestShared:
    """A trust group whose workers map the arena writable, because their devices can pin nothing else."""

    @pytest.fixture
    def shared(self, start: Callable[..., DaemonThread], tmp_path: Path) -> DaemonThread:
        ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
        (tmp_path / "ssd").mkdir()
        return start(row_path={"arena": "shared"}, ssd=ssd)

    def test_what_a_worker_wrote_over_is_not_stored_and_not_served(self, shared: DaemonThread) -> None:
        """The block's checksum is verified before it goes down: it is dropped everywhere, its neighbours are stored."""
        with Client(shared.socket, GEOMETRY) as client:
            arena = client.map_arena(writable=True)
            assert arena.writable
            worker = Worker(client)
            worker.fill(6)
            keys = save(worker, 6, 3)
            request, table = attach(client, 7, keys)
            follow(client, request, table, lambda: len(table.frames) == 3 * CHUNKS)
            assert table.arena is arena
            spoilt = arena.view(table.frames[1, 2], 8)
            spoilt[:] = b"scribble"
            spoilt.release()
            client.flush("ssd", deadline_s=5).wait()
            follow(client, request, table, lambda: len(table.revoked) == CHUNKS)
            assert {block for block, _ in table.revoked} == {1}
            request.ack(table.version)
            assert client.match(keys).length == 1
            request.detach()

    def test_a_worker_may_still_ask_for_a_read_only_mapping(self, shared: DaemonThread) -> None:
        """Who needs no more gets no more, and is given the other kind when asked for."""
        with Client(shared.socket, GEOMETRY) as client:
            arena = client.map_arena()
            with pytest.raises(TypeError, match="readonly"):
                arena.segments[0][0] = 1
            writable = client.map_arena(writable=True)
            writable.segments[0][:4] = b"both"
            assert arena.segments[0][:4] == b"both"
            assert client.map_arena() is writable
