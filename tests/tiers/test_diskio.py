"""The contract of disk I/O, run on every engine: whole transfers or faults, on real files."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import random
import resource
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop

from flexkv_py.core.messages import Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.diskio import DiskFile, DiskIo, IoChoice, IoPath, nothing
from flexkv_tiers.diskio.faulty import DiskFaultPlan, FaultyIo
from flexkv_tiers.diskio.files import IOVECS_MAX
from flexkv_tiers.diskio.portable import AiofilesIo
from flexkv_tiers.diskio.threads import ThreadsIo
from flexkv_tiers.diskio.uring import INLINE_BYTES_MAX, UringIo
from tests import leaks
from tests.tiers.page_cache import cached_pages

KIB, MIB = 1 << 10, 1 << 20
PAGE = 4 * KIB
DIRECT = IoChoice(IoPath.DIRECT, "for the test")
Scene = Callable[[DiskIo], Awaitable[None]]
Life = Callable[..., None]

ENGINES: dict[str, Callable[[IoChoice, int], DiskIo]] = {
    "io_uring": lambda choice, depth: UringIo(choice, depth, "for the test"),
    "threads": lambda choice, depth: ThreadsIo(choice, depth, "for the test"),
    "aiofiles": lambda choice, depth: AiofilesIo(choice, depth, "for the test"),
    "faulty": lambda choice, depth: FaultyIo(ThreadsIo(choice, depth, "for the test"), DiskFaultPlan()),
}


@pytest.fixture(params=list(ENGINES))
def live(request) -> Life:
    """Runs a scene with an engine and stops it."""

    def run(scene: Scene, choice: IoChoice = DIRECT, depth: int = 8, loop: Callable[..., None] = asyncio.run) -> None:
        async def life() -> None:
            with no_callback_fails():
                io = ENGINES[request.param](choice, depth)
                try:
                    await scene(io)
                finally:
                    await io.stop()
                    await asyncio.sleep(0.002)  # whatever the engine left to the loop runs now

        loop(life())

    return run


@contextmanager
def no_callback_fails() -> Iterator[None]:
    """What a callback raises would only be logged by the loop: collect it."""
    failed: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    yield
    assert failed == []


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "file"


def memory(length: int, content: bytes = b"") -> memoryview:
    """Aligned memory, filled."""
    view = memoryview(mmap.mmap(-1, length))
    view[: len(content)] = content
    return view


def cut(view: memoryview, lengths: list[int]) -> list[memoryview]:
    """Pieces of a view, one after the other."""
    pieces, at = [], 0
    for length in lengths:
        pieces.append(view[at : at + length])
        at += length
    return pieces


async def opened(io: DiskIo, path: Path, create_bytes: int = 0) -> DiskFile:
    return await io.run(lambda: io.open(path, create_bytes=create_bytes))


async def fault_of(transfer: Awaitable[object]) -> Fault | None:
    try:
        await transfer
    except TierFault as fault:
        return fault.fault
    return None


@contextmanager
def files_end_at(limit: int) -> Iterator[None]:
    """The kernel cuts a write short at this byte of any file, and refuses one that begins there (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_what_is_written_is_read(live, path, loop):
    """Transfers of any number and size of pieces, many at a time, bring back what was written where it was written."""
    shapes = ([PAGE], [INLINE_BYTES_MAX + PAGE], [PAGE] * (2 * IOVECS_MAX + 5), [MIB, PAGE, 64 * KIB], [PAGE] * 7)

    async def scene(io: DiskIo) -> None:
        chance = random.Random(1)
        file = await opened(io, path, 32 * MIB)
        assert file.bytes == 32 * MIB
        places, at = [], PAGE
        for _ in range(25):
            lengths = list(chance.choice(shapes))
            places.append((at, lengths, chance.randbytes(sum(lengths))))
            at += sum(lengths) + PAGE * chance.randrange(2)
        assert at <= file.bytes
        sources = [memory(len(content), content) for _, _, content in places]
        writes = (
            io.write(file, cut(source, place[1]), place[0]) for source, place in zip(sources, places, strict=True)
        )
        await asyncio.gather(*writes)
        await io.sync(file)
        chance.shuffle(places)
        targets = [memory(len(content)) for _, _, content in places]
        reads = (
            io.read(file, cut(target, place[1]), place[0], lambda target=target: bytes(target))
            for target, place in zip(targets, places, strict=True)
        )
        assert await asyncio.gather(*reads) == [content for _, _, content in places]
        await io.run(file.close)

    live(scene, loop=loop)


def test_what_follows_a_read_runs_off_the_loop(live, path):
    """`then` runs on another thread, after the bytes are in; its result, or what it raises, is the future's."""
    content = os.urandom(PAGE)
    path.write_bytes(content)

    async def scene(io: DiskIo) -> None:
        file, target = await opened(io, path), memory(PAGE)
        seen = await io.read(file, [target], 0, lambda: (threading.current_thread(), bytes(target)))
        assert seen[0] is not threading.main_thread()
        assert seen[1] == content
        assert await io.read(file, [target], 0, nothing) is None
        with pytest.raises(ZeroDivisionError):
            await io.read(file, [target], 0, lambda: 1 // 0)
        file.close()

    live(scene)


@pytest.mark.parametrize("length", [0, PAGE, 3 * PAGE, 2 * PAGE + 100])
def test_an_early_end_of_the_file_is_a_fault(live, path, length):
    """A read that the file ends in fails as CORRUPT, wherever it ends, after however many short reads."""
    path.write_bytes(bytes(length))

    async def scene(io: DiskIo) -> None:
        file = await opened(io, path)
        assert await fault_of(io.read(file, cut(memory(4 * PAGE), [PAGE] * 4), 0, nothing)) is Fault.CORRUPT
        file.close()

    live(scene)


def test_one_failure_in_a_batch_is_its_own(live, path):
    """Of forty reads asked for at once those beyond the end fail, all others bring their bytes."""
    content = os.urandom(20 * PAGE)
    path.write_bytes(content)

    async def scene(io: DiskIo) -> None:
        file = await opened(io, path)
        targets = [memory(PAGE) for _ in range(40)]
        order = random.Random(2).sample(range(40), 40)
        ends = await asyncio.gather(*(fault_of(io.read(file, [targets[at]], at * PAGE, nothing)) for at in order))
        for at, end in zip(order, ends, strict=True):
            assert end is (None if at < 20 else Fault.CORRUPT)
            assert at >= 20 or targets[at] == content[at * PAGE :][:PAGE]
        file.close()

    live(scene)


def test_a_full_disk_fails_the_writes_that_do_not_fit(live, path):
    """A write that the kernel cuts short is carried on, and FULL once nothing more fits; its neighbours succeed."""
    path.touch()

    async def scene(io: DiskIo) -> None:
        file, source = await opened(io, path), memory(4 * PAGE, os.urandom(4 * PAGE))
        with files_end_at(10 * PAGE):
            writes = (io.write(file, cut(source, [PAGE] * 4), at * PAGE) for at in (0, 4, 8, 12))
            ends = await asyncio.gather(*map(fault_of, writes))
        assert ends == [None, None, Fault.FULL, Fault.FULL]
        assert path.read_bytes() == (bytes(source) * 3)[: 10 * PAGE]
        file.close()

    live(scene)


def test_an_error_of_the_device_is_a_fault(live):
    """EIO, of a read and of a write, comes out as Fault.IO with the words of the kernel."""

    async def scene(io: DiskIo) -> None:
        file = await opened(io, Path("/proc/self/mem"))  # nothing is mapped at 0: the kernel answers EIO
        for transfer in (io.read(file, [memory(PAGE)], 0, nothing), io.write(file, [memory(PAGE)], 0)):
            with pytest.raises(TierFault, match="Input/output error") as caught:
                await transfer
            assert caught.value.fault is Fault.IO
        file.close()

    live(scene, IoChoice(IoPath.FADVISE, "for the test"))


def test_a_cancelled_caller_waits_for_the_disk(live, path):
    """Cancellation, even twice, ends an `await` only after the read and what follows it are over."""
    path.write_bytes(bytes(PAGE))
    gate = threading.Event()

    async def scene(io: DiskIo) -> None:
        file = await opened(io, path)

        async def caller() -> None:
            await io.read(file, [memory(PAGE)], 0, lambda: gate.wait(10))

        task = asyncio.create_task(caller())
        for _ in range(2):
            await asyncio.sleep(0.01)
            task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        file.close()

    live(scene)


def test_reads_overtake_waiting_writes(live, path):
    """With one transfer at a time, a read asked for last ends before all writes but the one under way."""

    async def scene(io: DiskIo) -> None:
        file, ended = await opened(io, path, 16 * MIB), []
        transfers = [io.write(file, [memory(MIB)], at * MIB) for at in range(10)]
        transfers.append(io.read(file, [memory(PAGE)], 0, nothing))
        for name, transfer in enumerate(transfers):
            transfer.add_done_callback(lambda _, name=name: ended.append(name))
        await asyncio.gather(*transfers)
        assert ended.index(10) <= 1
        file.close()

    live(scene, depth=1)


def test_a_file_deleted_underneath_is_a_fault_of_the_sync(live, path):
    """What nobody will find again is not durable: the sync fails, for all who waited for it."""

    async def scene(io: DiskIo) -> None:
        file = await opened(io, path, PAGE)
        await io.write(file, [memory(PAGE)], 0)
        path.unlink()
        assert await asyncio.gather(*(fault_of(io.sync(file)) for _ in range(5))) == [Fault.IO] * 5
        assert file.deleted
        file.close()

    live(scene)


@pytest.mark.parametrize("io_path", list(IoPath))
@pytest.mark.parametrize("live", ["io_uring", "threads", "aiofiles"], indirect=True)
def test_the_page_cache_is_left_alone(live, path, io_path):
    """On no path do written or read pages stay in the kernel's cache, nor what it would read ahead."""

    async def scene(io: DiskIo) -> None:
        file, view = await opened(io, path, 8 * MIB), memory(2 * MIB)
        await asyncio.gather(*(io.write(file, [view], at * MIB) for at in (0, 3, 6)))
        await io.sync(file)
        await asyncio.gather(*(io.read(file, [view], at * MIB, nothing) for at in (0, 3, 6)))
        assert cached_pages(path) == 0
        file.close()

    live(scene, IoChoice(io_path, "for the test"))


def test_stop_waits_for_what_is_under_way_and_leaves_nothing_open(path):
    """After `stop` every future has ended, and no thread, descriptor or mapping of the engine is left."""

    async def life(make: Callable[[IoChoice, int], DiskIo], turns: int = 0) -> None:
        io = make(DIRECT, 4)
        file, area = await opened(io, path, 4 * MIB), memory(64 * KIB)
        asked = [io.write(file, [area], at * MIB) for at in range(4)]
        asked += [io.read(file, [memory(64 * KIB)], at * MIB, lambda: None) for at in range(4)]
        asked += [io.sync(file) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        asked += [io.sync(file), io.sync(file)]
        with no_callback_fails():
            await io.stop()
            await asyncio.sleep(0.002)
        assert all(future.done() and not future.exception() for future in asked)
        file.close()
        path.unlink()

    asyncio.run(life(ENGINES["threads"]))  # whatever is made once per process is made now
    gc.collect()
    files, threads = leaks.open_files(), leaks.threads()
    for make in ENGINES.values():
        for turns in (0, 1, 5, 30):
            asyncio.run(life(make, turns))
    gc.collect()
    assert leaks.open_files() <= files
    assert leaks.threads() <= threads
