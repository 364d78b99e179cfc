"""The arena: frames, checksums, who may write, what is allocated when."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.memory import Arena, sealed_memfd
from flexkv_tiers.memory.arena import POPULATE_SLICE_BYTES
from tests.leaks import open_files

SEGMENT_BYTES = 1 << 20
FRAMES_PER_SEGMENT = SEGMENT_BYTES // 4096
NOBODY = 65534
PR_SET_DUMPABLE = 4


@pytest.fixture
def arena() -> Iterator[Arena]:
    older = open_files()
    arena = Arena(SEGMENT_BYTES, 3, huge_pages=False)
    yield arena
    arena.close()
    assert not open_files() - older, "an arena leaves no descriptor open"


def test_frames_are_places_in_segments(arena: Arena) -> None:
    """A frame's view and address name the same bytes; neighbours and segments do not overlap."""
    for frame in range(0, 3 * FRAMES_PER_SEGMENT, 7):
        arena.view(frame, 4096)[:] = frame.to_bytes(2, "little") * 2048
    for frame in range(0, 3 * FRAMES_PER_SEGMENT, 7):
        assert bytes(arena.view(frame, 4096)) == frame.to_bytes(2, "little") * 2048
        assert ctypes.string_at(arena.address(frame), 2) == frame.to_bytes(2, "little")


@pytest.mark.parametrize(("frame", "length"), [(FRAMES_PER_SEGMENT - 1, 8192), (-1, 4096), (3 * FRAMES_PER_SEGMENT, 1)])
def test_a_frame_lies_within_one_segment(arena: Arena, frame: int, length: int) -> None:
    """A frame number that straddles segments or lies outside is a bug and says so."""
    with pytest.raises(AssertionError):
        arena.view(frame, length)


def test_a_checksum_stays_with_its_frame(arena: Arena) -> None:
    """Every frame number has its own 16 bytes, which do not disturb any frame's data."""
    frames = range(3 * FRAMES_PER_SEGMENT)
    for frame in frames:
        arena.set_checksum(frame, frame.to_bytes(16, "big"))
    assert [int.from_bytes(arena.checksum(frame), "big") for frame in frames] == list(frames)
    assert not any(any(arena.view(frame, 4096)) for frame in (0, FRAMES_PER_SEGMENT - 1, 3 * FRAMES_PER_SEGMENT - 1))


def test_a_child_process_attaches_to_the_same_memory(arena: Arena) -> None:
    """What a byte worker writes, data and checksum, is there in the daemon, and the other way round."""
    arena.view(1, 4096)[:4] = b"ping"
    program = (
        "import sys; from flexkv_tiers.memory import Arena\n"
        f"arena = Arena.attach([int(word) for word in sys.argv[1:]], {SEGMENT_BYTES})\n"
        "assert bytes(arena.view(1, 4096)[:4]) == b'ping'\n"
        f"arena.view({FRAMES_PER_SEGMENT}, 4096)[:4] = b'pong'\n"
        f"arena.set_checksum({FRAMES_PER_SEGMENT}, b'c' * 16)\n"
        "arena.close()\n"
    )
    fds = arena.segment_fds
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", program, *map(str, fds)], pass_fds=fds, env={"PYTHONPATH": path}, check=True)
    assert bytes(arena.view(FRAMES_PER_SEGMENT, 4096)[:4]) == b"pong"
    assert arena.checksum(FRAMES_PER_SEGMENT) == b"c" * 16


def test_a_segment_keeps_its_size_and_its_owner(arena: Arena) -> None:
    """Nobody can shrink or grow a segment or take its seals off, and its mode is 0600."""
    for descriptor in arena.segment_fds:
        assert os.fstat(descriptor).st_mode & 0o777 == 0o600
        for length in (0, 1 << 30):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, length)
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert not os.get_inheritable(descriptor)


def test_a_read_only_descriptor_reads_and_never_writes(arena: Arena) -> None:
    """It shows the frames, but cannot be mapped writable, made writable, or written."""
    arena.view(FRAMES_PER_SEGMENT, 4096)[:6] = b"shared"
    descriptor = arena.read_only_fd(1)
    with mmap.mmap(descriptor, SEGMENT_BYTES, prot=mmap.PROT_READ) as mapped:
        assert mapped[:6] == b"shared"
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, SEGMENT_BYTES, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(descriptor, b"x")
    os.close(descriptor)


def test_a_read_only_mapping_cannot_be_made_writable(arena: Arena) -> None:
    """mprotect on it is refused by the kernel."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    descriptor = arena.read_only_fd(0)
    address = libc.mmap(None, SEGMENT_BYTES, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    refused = libc.mprotect(ctypes.c_void_p(address), SEGMENT_BYTES, mmap.PROT_READ | mmap.PROT_WRITE)
    assert (refused, ctypes.get_errno()) == (-1, errno.EACCES)
    assert libc.munmap(ctypes.c_void_p(address), SEGMENT_BYTES) == 0
    os.close(descriptor)


def as_nobody(attempt: Callable[[], object]) -> bool:
    """Whether `attempt` succeeds in a child process of another uid."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # or its own /proc/self/fd would be shut to it
            attempt()
            status = 0
        except PermissionError:
            status = 2
        finally:
            os._exit(status)
    exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert exit_code in (0, 2)
    return exit_code == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_uid_cannot_reopen_a_read_only_descriptor_writable(arena: Arena) -> None:
    """The mode of the memfd stops it: the same attempt on one that is open to all succeeds."""
    shut, open_to_all = arena.read_only_fd(0), sealed_memfd("test-open", 4096)
    os.fchmod(open_to_all, 0o666)
    assert as_nobody(lambda: mmap.mmap(shut, 4096, prot=mmap.PROT_READ))
    assert not as_nobody(lambda: mmap.mmap(shut, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE))
    assert not as_nobody(lambda: os.open(f"/proc/self/fd/{shut}", os.O_RDWR))
    assert not as_nobody(lambda: os.fchmod(shut, 0o666))
    assert as_nobody(lambda: os.open(f"/proc/self/fd/{open_to_all}", os.O_RDWR))
    os.close(shut)
    os.close(open_to_all)


def allocated_bytes(arena: Arena) -> int:
    return sum(os.fstat(descriptor).st_blocks * 512 for descriptor in arena.segment_fds)


def test_memory_is_allocated_in_the_background_and_keeps_its_contents() -> None:
    """A new arena holds nothing; populating brings every page in without touching what was written."""
    arena = Arena(2 * POPULATE_SLICE_BYTES + 4096, 2, huge_pages=False)
    assert allocated_bytes(arena) == 0
    arena.view(5, 4096)[:5] = b"early"
    thread = threading.Thread(target=arena.populate, args=(threading.Event(),))
    thread.start()
    thread.join()
    assert arena.populated_bytes == arena.room_bytes
    assert allocated_bytes(arena) >= arena.room_bytes
    assert bytes(arena.view(5, 4096)[:5]) == b"early"
    arena.close()


def test_populating_stops_when_told(arena: Arena) -> None:
    """A stop before the next slice leaves the rest unallocated."""
    stop = threading.Event()
    stop.set()
    arena.populate(stop)
    assert arena.populated_bytes == 0
    assert allocated_bytes(arena) == 0


def test_an_impossible_arena_is_refused_with_its_cure() -> None:
    """More than the address space holds is a configuration error; nothing stays open."""
    older = open_files()
    with pytest.raises(FlexKVError, match="make it smaller") as caught:
        Arena(1 << 60, 1)
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert not open_files() - older


def test_huge_pages_are_used_only_when_reserved() -> None:
    """With enough of them free the arena takes them and says so, else it falls back and says that."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    huge_bytes = int(meminfo["Hugepagesize"].split()[0]) * 1024
    enough = int(meminfo["HugePages_Free"]) - int(meminfo["HugePages_Rsvd"]) >= 2
    arena = Arena(huge_bytes, 1)
    arena.populate(threading.Event())
    arena.view(0, huge_bytes)[-1] = 7
    arena.set_checksum(huge_bytes // 4096 - 1, b"h" * 16)
    assert arena.status()["huge_page_segments"] == int(enough)
    assert str(arena.status()["pages"]).startswith(f"{huge_bytes // 1024} KiB" if enough else "4 KiB")
    arena.close()


def test_a_frame_in_use_survives_closing() -> None:
    """Closing never unmaps memory that somebody still looks at."""
    arena = Arena(SEGMENT_BYTES, 1)
    view = arena.view(2, 4096)
    view[:4] = b"mine"
    arena.close()
    assert bytes(view[:4]) == b"mine"
