"""The limit of open files: raised, checked before a start, and named wherever it is met. Limits are real ones."""

import asyncio
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flexkv_py.client import Client
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.base import TierFault
from flexkv_tiers.ssd import SsdStore
from flexkvd import file_limit, preflight
from flexkvd.config import load_config
from tests.tiers.contract import Frames, block, opened, write_all

from .conftest import GEOMETRY, DaemonThread, Worker
from .test_preflight import config
from .test_process import COMMAND, ENVIRONMENT, Process

KIB = 1 << 10
UNPRIVILEGED_UID = 65_534


def limited(soft: int, hard: int, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours under this limit of open files, to its end."""
    return subprocess.run(
        command,
        env=ENVIRONMENT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def write_config(folder: Path, ssd: str = "", limits: str = "") -> Path:
    file = folder / "flexkvd.toml"
    file.write_text(
        f'[daemon]\nsocket = "{folder}/worker.sock"\n[api]\nsocket = ""\n'
        f'[dram]\nbytes = "4MiB"\nsegment_bytes = "4MiB"\n[limits]\n{limits}\n'
        f'[ssd]\ndirectory = "{folder}/ssd"\n{ssd}\n'
    )
    return file


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """Let this process open only so many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    plugs = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        while True:
            try:
                plugs.append(os.dup(0))
            except OSError:
                break
        for descriptor in spare:
            os.close(descriptor)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in plugs:
            os.close(descriptor)


def test_more_segments_than_files_end_check_config_and_start_alike(tmp_path: Path) -> None:
    """The sentence names the limit, what is wanted of it and by what, and the cure; nothing is made."""
    file = write_config(tmp_path, 'bytes = "100MiB"\nsegment_bytes = "64KiB"')
    for arguments in (["--check-config"], []):
        ended = limited(256, 1024, *COMMAND, *arguments, "--config", str(file))
        assert ended.returncode == 2, ended.stderr
        assert "[out_of_files]" in ended.stderr
        for words in ("1600 segments of [ssd]", "may open 1024", "RLIMIT_NOFILE", "LimitNOFILE=", "ulimit -n"):
            assert words in ended.stderr
    assert not (tmp_path / "ssd").exists()


def test_too_few_files_for_all_clients_is_a_warning(tmp_path: Path) -> None:
    """The tiers fit and 1,000 clients do not: said with the cure, and no more once fewer may come."""
    file = write_config(tmp_path, 'bytes = "16MiB"', "sessions_max = 1000")
    tight = limited(256, 1024, *COMMAND, "--check-config", "--config", str(file))
    assert (tight.returncode, "is fine" in tight.stdout) == (0, True)
    assert "3000 for clients" in tight.stderr
    assert "LimitNOFILE=" in tight.stderr
    fewer = config(tmp_path, limits={"sessions_max": 100}, ssd={"directory": str(tmp_path / "ssd"), "bytes": "16MiB"})
    assert file_limit.files_needed(fewer).all < 1024


def test_segments_are_counted_by_the_size_they_have_or_will_have(tmp_path: Path, frames: Frames) -> None:
    """By the size table in a new directory, as configured, or as most files are that lie there already."""
    new = {"directory": str(tmp_path / "new"), "bytes": "256GiB"}
    assert file_limit.files_needed(config(tmp_path, ssd=new)).segments == 1024
    fixed = {"directory": [f"{tmp_path}/a", f"{tmp_path}/b"], "bytes": "100MiB", "segment_bytes": "64KiB"}
    assert file_limit.files_needed(config(tmp_path, ssd=fixed)).segments == 1600
    fill(tmp_path / "old", frames)
    old = {"directory": str(tmp_path / "old"), "bytes": "64MiB"}
    assert file_limit.files_needed(config(tmp_path, ssd=old)).segments == 512


def fill(directory: Path, frames: Frames) -> None:
    """Eight records in segments of 128 KiB."""

    async def life() -> None:
        store = SsdStore(directory, 1024 * KIB, frames.arena, segment_bytes=128 * KIB, reserve_bytes=0)
        async with opened(store) as tier:
            await write_all(tier, frames, [block(number) for number in range(8)])

    asyncio.run(life())


@pytest.fixture
def frames() -> Iterator[Frames]:
    frames = Frames()
    yield frames
    frames.arena.close()


def test_the_daemon_raises_its_soft_limit(tmp_path: Path) -> None:
    """A shell's 256 is no limit to it; while it holds its directory --check-config warns, naming the process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        process = Process(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        assert resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        wanted = load_config(process.config)
        checked = limited(soft, hard, *COMMAND, "--check-config", "--config", str(process.config))
        assert checked.returncode == 0
        assert "a start now would be refused ([directory_locked]" in checked.stderr
        assert f"process {process.process.pid}" in checked.stderr
    finally:
        process.process.kill()
        process.process.wait()
    assert list(preflight.held_now(wanted)) == []


def test_a_segment_that_finds_no_open_file_is_a_fault_that_says_so(tmp_path: Path, frames: Frames) -> None:
    """It blames neither the directory nor its rights, and the next save is taken once there are files again."""

    async def life() -> None:
        store = SsdStore(tmp_path, 1024 * KIB, frames.arena, segment_bytes=128 * KIB, reserve_bytes=0)
        async with opened(store) as tier:
            with files_left(0), pytest.raises(TierFault) as caught:
                await write_all(tier, frames, [block(1)])
            assert "RLIMIT_NOFILE" in str(caught.value)
            await write_all(tier, frames, [block(2)])

    asyncio.run(life())


@pytest.mark.parametrize("left", [1, 2])
def test_a_memory_that_finds_no_open_file_is_told_so(tmp_path: Path, left: int) -> None:
    """Whether its descriptor is lost on the way in or its mapping fails; later it works.

    The client's own duplicate takes one of those left.
    """
    daemon = DaemonThread(tmp_path)
    try:
        with Client(daemon.socket, GEOMETRY) as client:
            worker = Worker(client)
            with files_left(left), pytest.raises(FlexKVError) as caught:
                worker.register()
            assert caught.value.code is ErrorCode.OUT_OF_FILES
            assert "LimitNOFILE=" in caught.value.message
            worker.register()
    finally:
        daemon.stop()


def test_a_client_that_cannot_be_accepted_waits_and_the_loop_rests(tmp_path: Path) -> None:
    """With no file left the daemon uses hardly any CPU, counts it, and serves the client once there is one."""
    daemon = DaemonThread(tmp_path)
    try:
        waiting = socket.socket(socket.AF_UNIX)
        with waiting, files_left(0):
            waiting.connect(str(daemon.socket))
            before_s = time.process_time()
            time.sleep(0.5)
            assert time.process_time() - before_s < 0.25
        assert daemon.parts.server.failures[ErrorCode.OUT_OF_FILES.value] > 0
        with Client(daemon.socket, GEOMETRY) as client:
            client.ping()
    finally:
        daemon.stop()


def test_verify_opens_one_segment_at_a_time(tmp_path: Path, frames: Frames) -> None:
    """Files of more segments than may be open are all checked."""
    directory = tmp_path / "ssd"
    fill(directory, frames)
    for number in range(100, 200):
        (directory / f"segment-{number:06d}.kv").write_bytes(bytes(8 * KIB))
    command = [sys.executable, "-c", "from flexkvd.cli import main; raise SystemExit(main())", "verify", str(directory)]
    ended = limited(40, 40, *command)
    assert ended.returncode == 0, ended.stderr
    assert "8 records whole" in ended.stdout


@pytest.mark.parametrize("name", ["flexkv.probe", "segment.partial", "flexkv.json.partial"])
def test_an_entry_in_the_way_is_named(tmp_path: Path, frames: Frames, name: str) -> None:
    """A directory that has the name of a file of ours is blamed, not the one it lies in."""
    fill(tmp_path / "ssd", frames)
    (tmp_path / "ssd" / name).mkdir()
    wanted = config(tmp_path, ssd={"directory": str(tmp_path / "ssd"), "bytes": "1MiB", "segment_bytes": "128KiB"})
    [problem] = preflight.problems(wanted)
    assert problem.code is ErrorCode.DIRECTORY_NOT_WRITABLE
    assert str(tmp_path / "ssd" / name) in problem.message
    assert "Is a directory" in problem.message


def test_a_start_names_what_is_in_the_way_too(tmp_path: Path, frames: Frames) -> None:
    """Also when it came after the configuration was checked."""
    (tmp_path / "flexkv.probe").mkdir()
    with pytest.raises(FlexKVError) as caught:
        fill(tmp_path, frames)
    assert f"cannot use {tmp_path / 'flexkv.probe'} (Is a directory)" in caught.value.message


def test_a_segment_without_rights_is_named(frames: Frames) -> None:
    """By --check-config, as a start would: the file, why, and what to do with it."""
    script = (
        "import os, sys; from pathlib import Path; from flexkv_tiers.ssd import directory;"
        "os.getuid() or os.setuid(int(sys.argv[1])); directory.inspect(Path(sys.argv[2]))"
    )
    with tempfile.TemporaryDirectory(prefix="flexkv-") as name:  # whose parents anybody may enter
        folder = Path(name)
        os.chmod(folder, 0o755)
        fill(folder / "ssd", frames)
        os.chmod(folder / "ssd", 0o777)
        segments = sorted((folder / "ssd").glob("segment-*.kv"))
        for path in segments[:-1]:
            os.chmod(path, 0o666)
        os.chmod(segments[-1], 0o400)
        ended = limited(1024, 1024, sys.executable, "-c", script, str(UNPRIVILEGED_UID), str(folder / "ssd"))
    assert f"cannot use {segments[-1]} (Permission denied): let it be a file" in ended.stderr
