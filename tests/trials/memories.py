"""Memories a hostile worker offers or plays with: refused with cause and cure, or harmless to everybody but itself."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flexkv_py.client import Client, create_memory
from flexkv_py.core.messages import Outcome
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import Ping
from tests.service.test_protocol import Stranger

from .blocks import BLOCK_BYTES, GEOMETRY, Pages, chain
from .fleet import DaemonProcess, until
from .garbage import Bystander, tables_of
from .kill_worker import MEMORY_NAME

BLOCKS = 16
LENGTH = BLOCKS * BLOCK_BYTES
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2
F_SEAL_FUTURE_WRITE = 0x10
UNREAD_GROWTH_BYTES_MAX = 4 << 20
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


@dataclass(frozen=True)
class Offer:
    """A descriptor that must be refused: how it is made, and words of the refusal's cause and cure."""

    make: Callable[[Path], int]
    cause: str
    cure: str


def _unsealed(_folder: Path) -> int:
    descriptor = os.memfd_create("offer", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, LENGTH)
    return descriptor


def _unsealable(_folder: Path) -> int:
    descriptor = os.memfd_create("offer")
    os.ftruncate(descriptor, LENGTH)
    return descriptor


def _regular(folder: Path) -> int:
    descriptor = os.open(folder / "offer", os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, LENGTH)
    return descriptor


def _huge(_folder: Path) -> int:
    """Made without a single reserved page: that is no obstacle before it is touched."""
    descriptor = os.memfd_create("offer", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    os.ftruncate(descriptor, 2 << 20)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


def _short(_folder: Path) -> int:
    return create_memory(LENGTH - mmap.PAGESIZE)


def _read_only(_folder: Path) -> int:
    descriptor = create_memory(LENGTH)
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    finally:
        os.close(descriptor)


def _sealed_against_writes(_folder: Path) -> int:
    descriptor = create_memory(LENGTH)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    return descriptor


def _pipe(_folder: Path) -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def _directory(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY)


OFFERS = {
    "an unsealed memfd": Offer(_unsealed, "F_SEAL_SHRINK", "add the seal"),
    "a memfd that takes no seals": Offer(_unsealable, "F_SEAL_SHRINK", "add the seal"),
    "a regular file": Offer(_regular, "not a memfd", "memfd_create"),
    "a hugetlb memfd": Offer(_huge, "huge pages", "without MFD_HUGETLB"),
    "a short memfd": Offer(_short, f"{LENGTH} were announced", "ftruncate before sealing"),
    "a read-only memfd": Offer(_read_only, "cannot be mapped writable", "opened for reading and writing"),
    "a memfd sealed against writes": Offer(_sealed_against_writes, "cannot be mapped writable", "F_SEAL_FUTURE_WRITE"),
    "a pipe": Offer(_pipe, "not a memfd", "memfd_create"),
    "a directory": Offer(_directory, "not a memfd", "memfd_create"),
}


@contextmanager
def beside_a_bystander(folder: Path, **limits: object) -> Iterator[DaemonProcess]:
    """A daemon, and a working client that must not be harmed."""
    tables = tables_of(folder)
    tables["limits"] |= limits
    with DaemonProcess(folder, tables) as daemon:
        other = Bystander(daemon)
        other.start()
        try:
            until(lambda: other.rounds > 0 or other.failure is not None, "the other client works")
            yield daemon
        finally:
            other.end()
        daemon.settle()
        daemon.recount()


def refused_offers(folder: Path) -> dict[str, float]:
    """Offer every unsuitable descriptor; each is refused with cause and cure, and nothing of it stays open."""
    with beside_a_bystander(folder) as daemon, Client(daemon.socket, GEOMETRY) as client:
        client.ping()
        for name, offer in OFFERS.items():
            descriptor = offer.make(folder)
            try:
                error = _refusal(client, descriptor)
            finally:
                os.close(descriptor)
            assert error.code is ErrorCode.BAD_MEMORY, f"{name}: {error}"
            assert offer.cause in error.message, f"{name}: {error}"
            assert offer.cure in error.message, f"{name}: {error}"
        assert daemon.maps("offer") == daemon.descriptors("offer") == 0
        assert daemon.maps(MEMORY_NAME) == daemon.descriptors(MEMORY_NAME) == 1  # the other client's
        return {"offers refused": len(OFFERS)}


def _refusal(client: Client, descriptor: int) -> FlexKVError:
    try:
        client.register_memory(
            descriptor, bytes=LENGTH, page_count=BLOCKS, page_tokens=GEOMETRY.tokens_per_block, kind="window"
        )
    except FlexKVError as error:
        return error
    raise AssertionError("the daemon took what it should have refused")


def holes(folder: Path, *, rounds: int = 100) -> dict[str, float]:
    """Punch holes into registered memory, grow it and try to cut it, while the daemon copies from and into it."""
    with beside_a_bystander(folder) as daemon, Client(daemon.socket, GEOMETRY) as client, ExitStack() as stack:
        pages = Pages(client, 2 * BLOCKS)
        descriptor = os.dup(pages.memory.registration.descriptors[0])
        stack.callback(os.close, descriptor)
        over, punched, cuts = threading.Event(), [0], [0]

        def punch() -> None:
            length = pages.layout.bytes
            while not over.is_set():
                _fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, length)
                punched[0] += 1
                try:
                    os.ftruncate(descriptor, 0)
                except PermissionError:
                    cuts[0] += 1
                os.ftruncate(descriptor, length + punched[0] * mmap.PAGESIZE)

        puncher = threading.Thread(target=punch, daemon=True)
        puncher.start()
        try:
            for turn in range(rounds):
                keys = chain(client, turn * BLOCKS, BLOCKS)
                assert client.save(keys, pages.pages(0, BLOCKS), pages.memory).wait().length == BLOCKS
                assert client.load(keys, pages.pages(BLOCKS, BLOCKS), pages.memory).wait().length == BLOCKS
        finally:
            over.set()
            puncher.join()
        assert punched[0] > rounds // 10
        assert cuts[0] == punched[0], "somebody could cut memory that the daemon has mapped"
        _still_serves(client, pages)
        return {"rounds": rounds, "holes punched": punched[0], "cuts refused by the kernel": cuts[0]}


def _still_serves(client: Client, pages: Pages) -> None:
    """The session that did it can go on with right bytes."""
    first = 1 << 16
    pages.put_chain(0, first, BLOCKS)
    keys = chain(client, first, BLOCKS)
    assert client.save(keys, pages.pages(0, BLOCKS), pages.memory).wait().outcomes == [Outcome.STORED] * BLOCKS
    assert client.load(keys, pages.pages(BLOCKS, BLOCKS), pages.memory).wait().length == BLOCKS
    assert pages.wrong(BLOCKS, range(first, first + BLOCKS)) == []


def deaf(folder: Path, *, workers: int = 4) -> dict[str, float]:
    """Workers that send requests and read no reply: closed at the limit, and what was kept for them is freed."""
    with beside_a_bystander(folder, write_buffer_bytes_max="1MiB") as daemon:
        before = daemon.rss_bytes()
        sent = [_pipeline(daemon) for _ in range(workers)]
        until(lambda: len(daemon.status()["sessions"]) == 1, "who does not read is closed", 10)
        grown = daemon.rss_bytes() - before
        assert grown < UNREAD_GROWTH_BYTES_MAX, f"the daemon kept {grown} bytes of dead sessions"
        return {"deaf workers": workers, "requests sent by each, most": max(sent), "growth_KiB": grown / 1024}


def _pipeline(daemon: DaemonProcess) -> int:
    """Send pings until the daemon hangs up; how many it took."""
    worker, sent = Stranger(daemon.socket).greet(), 0
    worker.socket.settimeout(5)
    try:
        with suppress(BrokenPipeError, ConnectionResetError):
            while sent < 50_000_000:
                worker.say(*(Ping(number) for number in range(1000)))
                sent += 1000
    except TimeoutError:
        raise AssertionError("the daemon neither reads nor hangs up") from None
    finally:
        worker.socket.close()
    return sent
