"""Which engine and which I/O path serve a directory, and what says so when the best cannot be had."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flexkv_py.core.messages import Fault
from flexkv_tiers.diskio import EngineName, nothing, open_disk_io
from flexkv_tiers.diskio.files import choose_io_path
from tests.tiers.small_disk import mounted
from tests.tiers.test_diskio import MIB, PAGE, fault_of, memory, opened

FORBIDDEN = r"""
import asyncio, ctypes, json, struct, sys
from pathlib import Path

from flexkv_py.errors import FlexKVError
from flexkv_tiers.diskio import open_disk_io

SETUP, ALLOW, REFUSE = 425, 0x7FFF0000, 0x00050000 + int(sys.argv[2])
filters = (0x20, 0, 0, 0), (0x15, 0, 1, SETUP), (0x06, 0, 0, REFUSE), (0x06, 0, 0, ALLOW)
program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in filters))
pointer = ctypes.create_string_buffer(struct.pack("@HP", len(filters), ctypes.addressof(program)))
system = ctypes.CDLL(None)
assert system.prctl(38, 1, 0, 0, 0) == 0 and system.prctl(22, 2, pointer, 0, 0) == 0

async def life():
    io = open_disk_io(Path(sys.argv[1]), "auto", 4, True)
    print(json.dumps(io.status()))
    await io.stop()
    try:
        open_disk_io(Path(sys.argv[1]), "io_uring", 4, True)
    except FlexKVError as error:
        print(json.dumps([error.code.value, error.message]))

asyncio.run(life())
"""
"""A process that forbids itself io_uring_setup by a seccomp filter, as containers do, then opens a directory."""


def status_of(directory: Path, engine: EngineName, *, direct: bool = True) -> dict[str, object]:
    async def life() -> dict[str, object]:
        io = open_disk_io(directory, engine, 4, direct)
        await io.stop()
        return io.status()

    return asyncio.run(life())


@pytest.mark.parametrize("engine", ["io_uring", "threads", "aiofiles"])
def test_an_engine_named_by_the_configuration_is_used(tmp_path, engine):
    """Status names the engine that was asked for; the probe of the file system is gone again."""
    status = status_of(tmp_path, engine)
    assert (status["engine"], status["engine_reason"]) == (engine, "the configuration says so")
    assert list(tmp_path.iterdir()) == []


def test_auto_takes_io_uring_where_it_works(tmp_path):
    """Without being told, the engine that measures best is taken, and status says why."""
    status = status_of(tmp_path, "auto")
    assert status["engine"] == "io_uring"
    assert "works here" in str(status["engine_reason"])


@pytest.mark.parametrize(("error", "words"), [(1, "forbidden"), (38, "no io_uring"), (22, "older than Linux 6.1")])
def test_where_io_uring_is_refused_threads_serve(tmp_path, error, words):
    """A kernel that refuses (EPERM, ENOSYS, EINVAL) costs nothing but speed; asked for by name it is an error."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FORBIDDEN, str(tmp_path), str(error)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    status, refusal = map(json.loads, ran.stdout.splitlines())
    assert status["engine"] == "threads"
    assert words in status["engine_reason"]
    assert refusal[0] == "bad_config"
    assert words in refusal[1]
    assert 'io = "auto"' in refusal[1]


def test_a_file_system_without_direct_io_is_served_buffered(tmp_path):
    """Where O_DIRECT is refused (ramfs), transfers still work, and status says what is done instead and why."""
    place = tmp_path / "mount"
    place.mkdir()
    with mounted("ramfs", "mode=777", place) as disk:
        status = status_of(disk, "auto")
        assert status["io_path"] == "fadvise"
        assert "refuses direct I/O (Invalid argument)" in str(status["io_reason"])

        async def life() -> None:
            io = open_disk_io(disk, "auto", 4, True)
            file, content, target = await opened(io, disk / "file", MIB), os.urandom(MIB), memory(MIB)
            await io.write(file, [memory(MIB, content)], 0)
            await io.sync(file)
            assert await io.read(file, [target], 0, lambda: bytes(target)) == content
            file.close()
            await io.stop()

        asyncio.run(life())


@pytest.mark.parametrize("engine", ["io_uring", "threads", "aiofiles"])
def test_a_disk_that_is_full(tmp_path, engine):
    """Allocation fails with the system's own error and leaves no file; a write that finds no room is FULL."""
    place = tmp_path / "mount"
    place.mkdir()
    with mounted("tmpfs", "size=1m", place) as disk:

        async def life() -> None:
            io = open_disk_io(disk, engine, 4, True)
            with pytest.raises(OSError, match="No space left"):
                await opened(io, disk / "large", 2 * MIB)
            assert list(disk.iterdir()) == []
            (disk / "sparse").touch()
            os.truncate(disk / "sparse", 4 * MIB)
            file = await opened(io, disk / "sparse")
            assert await fault_of(io.write(file, [memory(PAGE)], 0)) is None
            assert await fault_of(io.write(file, [memory(2 * MIB)], MIB)) is Fault.FULL
            assert await fault_of(io.read(file, [memory(PAGE)], 0, nothing)) is None
            file.close()
            await io.stop()

        asyncio.run(life())


def test_a_full_disk_still_has_a_way_to_be_read(tmp_path):
    """What lies on a file system without a free page can be opened: the path is chosen without trying a write."""
    place = tmp_path / "mount"
    place.mkdir()
    with mounted("tmpfs", "size=64k", place) as small:
        with pytest.raises(OSError, match="No space"):
            (small / "filler").write_bytes(bytes(1 << 20))
        assert choose_io_path(small / "probe", direct=True).path
        assert not (small / "probe").exists()
