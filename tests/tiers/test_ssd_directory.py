"""The SSD tier's directory: whose it is, what happens when the disk is full or the daemon is killed."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.ssd import SsdStore
from flexkv_tiers.ssd.directory import refusal as coded_refusal
from tests.tiers.contract import (
    KIB,
    Frames,
    assert_readable,
    block,
    content,
    drain,
    fault_or_location,
    opened,
    places_of,
)
from tests.tiers.small_disk import mounted
from tests.tiers.ssd_writer import LENGTHS, open_store

MIB = 1 << 20
NUMBERS_PER_LIFE = 10_000


@contextmanager
def writer(directory: Path, first: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """A real process that holds the directory and writes to it; killed at the end."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.tiers.ssd_writer", str(directory), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            yield child
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait(10)


def refusal(store: SsdStore) -> FlexKVError:
    """The coded error with which a store does not start."""

    async def scene() -> None:
        async with opened(store):
            raise AssertionError("the store started")

    with pytest.raises(FlexKVError) as caught:
        asyncio.run(scene())
    return caught.value


def store_in(directory: Path, frames: Frames, capacity_bytes: int = 4 * MIB, **options: object) -> SsdStore:
    options = {"segment_bytes": 1 * MIB, "reserve_bytes": 0} | options
    return SsdStore(directory, capacity_bytes, frames.arena, **options)


def digest(directory: Path) -> str:
    """One digest of all names, sizes, times and bytes below a directory."""
    state = [
        (str(path), path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(directory.rglob("*"))
    ]
    return hashlib.sha256(repr([directory.stat().st_mtime_ns, *state]).encode()).hexdigest()


def test_a_second_daemon_is_refused_by_name(tmp_path, frames):
    """A directory in use is DIRECTORY_LOCKED and names the holder; once that is killed, it opens."""
    with writer(tmp_path) as child:
        error = refusal(store_in(tmp_path, frames))
        assert error.code is ErrorCode.DIRECTORY_LOCKED
        assert f"process {child.pid}" in error.message
    live_once(store_in(tmp_path, frames, 64 * MIB))


def test_two_stores_of_one_process_exclude_each_other(tmp_path, frames):
    """The lock holds within one process too, and is free after close."""

    async def scene() -> None:
        async with opened(store_in(tmp_path, frames)):
            with pytest.raises(FlexKVError) as caught:
                await store_in(tmp_path, frames).start()
            assert caught.value.code is ErrorCode.DIRECTORY_LOCKED
        async with opened(store_in(tmp_path, frames)):
            pass

    asyncio.run(scene())


def test_no_file_that_is_deleted_lets_a_second_daemon_in(tmp_path, frames):
    """The lock is on the directory: with `flexkv.lock` gone, or all that is ours, the second is refused as before."""
    with writer(tmp_path):
        (tmp_path / "flexkv.lock").unlink()
        error = refusal(store_in(tmp_path, frames))
        assert error.code is ErrorCode.DIRECTORY_LOCKED
        assert "another daemon" in error.message
        for path in tmp_path.iterdir():
            path.unlink()
        assert refusal(store_in(tmp_path, frames)).code is ErrorCode.DIRECTORY_LOCKED


def test_a_directory_replaced_underneath_is_left_to_its_new_owner(tmp_path, frames):
    """Moved away and made anew for a second daemon, it gets no segment of the first: that has a fault to tell."""

    async def scene() -> None:
        async with opened(store_in(tmp_path / "tier", frames)) as first:
            (tmp_path / "tier").rename(tmp_path / "moved")
            async with opened(store_in(tmp_path / "tier", frames)):
                before = digest(tmp_path / "tier")
                outcome = await fault_or_location(first, block(1), frames.fill(block(1), LENGTHS))
                assert outcome is Fault.IO
                assert digest(tmp_path / "tier") == before

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("thesis.txt", b"the only copy", "thesis.txt"),
        ("segment-000001.kv", b"somebody's", "no flexkv.json"),
        ("flexkv.json", b"{not json", "cannot be read"),
        ("flexkv.json", b'{"format":"other","version":1,"id":"x"}', "format 'other'"),
        ("flexkv.json", b'{"format":"flexkv-ssd","version":99,"id":"x"}', "version 99"),
        ("flexkv.json", b'{"format":"flexkv-ssd","version":1,"id":"x"}', "version 1, this flexkvd reads 2"),
    ],
)
def test_a_foreign_directory_is_refused_and_not_touched(tmp_path, frames, name, content, why):
    """A directory that is not ours, or of another format version, is DIRECTORY_FOREIGN; nothing in it changes."""
    (tmp_path / name).write_bytes(content)
    before = digest(tmp_path)
    error = refusal(store_in(tmp_path, frames))
    assert error.code is ErrorCode.DIRECTORY_FOREIGN
    assert why in error.message
    assert digest(tmp_path) == before


def test_a_fresh_mount_and_an_interrupted_first_start_are_ours(tmp_path, frames):
    """`lost+found` of a new file system, or a lock left by a start that was killed, do not make it foreign."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "flexkv.lock").write_text("12345\n")
    (tmp_path / "flexkv.json.partial").write_text("{")
    live_once(store_in(tmp_path, frames))
    assert (tmp_path / "flexkv.json").exists()


def test_a_path_that_is_no_directory_is_refused(tmp_path, frames):
    """A file in the directory's place is DIRECTORY_NOT_WRITABLE, with the cure."""
    (tmp_path / "file").touch()
    error = refusal(store_in(tmp_path / "file" / "tier", frames))
    assert error.code is ErrorCode.DIRECTORY_NOT_WRITABLE
    assert "configure another" in error.message


def test_a_read_only_file_system_is_refused(tmp_path, frames):
    """A directory that nobody may write is DIRECTORY_NOT_WRITABLE."""
    with mounted("tmpfs", "ro", tmp_path) as directory:
        assert refusal(store_in(directory, frames)).code is ErrorCode.DIRECTORY_NOT_WRITABLE


def test_a_capacity_that_holds_nothing_is_refused(tmp_path, frames):
    """A capacity below one record is BAD_CONFIG, told before anything is touched."""
    with pytest.raises(FlexKVError) as caught:
        store_in(tmp_path, frames, 4 * KIB)
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_a_disk_too_small_for_one_segment_is_refused(tmp_path, frames):
    """An empty tier on a full disk could hold nothing: DISK_FULL at start."""
    with mounted("tmpfs", "size=512k", tmp_path) as directory:
        error = refusal(store_in(directory, frames))
        assert error.code is ErrorCode.DISK_FULL
        assert "smaller capacity" in error.message


def test_a_file_larger_than_the_file_system_allows_is_a_full_disk(tmp_path):
    """A capacity whose segments no file can hold is DISK_FULL too, not a matter of rights."""
    error = coded_refusal(tmp_path, OSError(errno.EFBIG, "File too large"))
    assert error.code is ErrorCode.DISK_FULL
    assert "smaller capacity" in error.message


def test_a_disk_that_fills_up_is_a_fault_and_recovers(tmp_path, frames):
    """The disk ends before the capacity does: FULL, all acknowledged stays; more disk, and it goes on."""
    lengths = (60 * KIB,)

    async def scene(directory: Path, ballast: Path) -> None:
        async with opened(store_in(directory, frames, 64 * MIB)) as store:
            occupy(ballast)
            places = {}
            for number in range(200):
                outcome = await fault_or_location(store, block(number), frames.fill(block(number), lengths))
                if isinstance(outcome, Fault):
                    break
                places[block(number)] = outcome
            assert outcome is Fault.FULL
            assert len(places) == 45  # three segments of fifteen; the fourth did not fit
            for name, location in places.items():
                await assert_readable(store, frames, name, location, lengths)
            assert store.status()["segments"] == 3
            release(ballast)
            assert isinstance(await fault_or_location(store, block(500), frames.fill(block(500), lengths)), int)

    with mounted("tmpfs", "size=4608k", tmp_path) as directory:
        asyncio.run(scene(directory, directory / "somebody's"))


def test_a_file_system_without_direct_io_is_served_and_says_so(tmp_path, frames):
    """Where O_DIRECT is refused the tier works on the stated fallback, warm restart included."""

    async def first(directory: Path) -> None:
        async with opened(store_in(directory, frames)) as store:
            [told] = store.status()["directories"]
            assert told["io_path"] == "fadvise"
            assert "refuses direct I/O" in told["io_reason"]
            location = await store.write(block(1), frames.fill(block(1), LENGTHS))
            await assert_readable(store, frames, block(1), location, LENGTHS)

    async def second(directory: Path) -> None:
        async with opened(store_in(directory, frames)) as store:
            [(name, location)] = places_of([batch async for batch in store.found()]).items()
            await assert_readable(store, frames, name, location, LENGTHS)

    with mounted("ramfs", "mode=700", tmp_path) as directory:
        asyncio.run(first(directory))
        asyncio.run(second(directory))


def kill_cycles(directory: Path, frames: Frames, cycles: int, seed: int) -> None:
    """Kill a writing process at random moments; after each, every acknowledged write must be there."""
    chance = random.Random(seed)
    source = frames.take(LENGTHS)  # the same frames again and again: the arena is small
    known: dict[BlockName, int] = {}
    owed: set[int] = set()

    async def look(oldest: int) -> None:
        async with opened(open_store(directory, frames)) as store:
            found = places_of([batch async for batch in store.found()])
            lost = owed - {known[name] for name in found}
            assert not lost, f"seed {seed}: acknowledged and lost: {sorted(lost)[:5]}"
            for name, location in found.items():
                assert await drain(store, name, location, source) == [0, 1, 2]
                assert frames.bytes_of(source) == content(name, LENGTHS)
                if known[name] < oldest:  # two lives are enough; the next one needs room
                    owed.discard(known[name])
                    await store.drop(name, location)
            assert store.damaged_at_start == store.status()["found_torn"]  # interrupted writes, nothing else

    for first in range(0, cycles * NUMBERS_PER_LIFE, NUMBERS_PER_LIFE):
        with writer(directory, first) as child:
            time.sleep(chance.uniform(0.0, 0.15))
            child.send_signal(signal.SIGKILL)
            lines = child.stdout.read().decode().splitlines()
        known |= {block(number): number for number in range(first, first + NUMBERS_PER_LIFE)}
        owed |= {int(line) for line in lines if line.startswith("+")}
        owed -= {-int(line) for line in lines if line.startswith("-")}
        asyncio.run(look(first - NUMBERS_PER_LIFE))


def test_every_acknowledged_write_survives_sigkill(tmp_path, frames):
    """A writing process killed at random moments, three times: acknowledged records are found and read right."""
    kill_cycles(tmp_path, frames, 3, seed=1)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_acknowledged_write_survives_sigkill_fifty_times(tmp_path, frames):
    """The same fifty times, over one directory that lives through all of it."""
    kill_cycles(tmp_path, frames, 50, seed=2)


def occupy(path: Path) -> None:
    """Somebody else takes a MiB of the disk."""
    path.write_bytes(bytes(MIB))


def release(path: Path) -> None:
    """And gives it back."""
    path.unlink()


def live_once(store: SsdStore) -> None:
    """Start a store and close it."""

    async def life() -> None:
        async with opened(store):
            pass

    asyncio.run(life())
