"""Bad input of workers and operators, over the real process: a code, and a sentence that names cause and cure."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flexkv_py.client import Client, PagedLayout, create_memory
from flexkv_py.core.messages import Outcome
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry, Plane
from flexkv_py.keys import BlockKey
from flexkv_py.wire.messages import Failed, Match
from tests.service.conftest import PAGE_TOKENS
from tests.service.test_protocol import Stranger
from tests.tiers.small_disk import mounted

from .blocks import GEOMETRY, Pages, chain
from .fleet import DaemonProcess

BLOCKS = 8
OTHER = Geometry(planes=(Plane("kv", tuple(range(3)), 128),), tokens_per_block=16, chunk_bytes_min=1024)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("bad")) as daemon:
        yield daemon


def register_other_layout(client: Client, _pages: Pages) -> None:
    layout = PagedLayout(OTHER, page_count=16, page_tokens=PAGE_TOKENS)
    descriptor = create_memory(layout.bytes)
    client.register_memory(descriptor, bytes=layout.bytes, page_count=16, page_tokens=PAGE_TOKENS, layout=layout.layers)


def save_page_out_of_range(client: Client, pages: Pages) -> None:
    client.save(chain(client, 0, 1), [0, pages.layout.page_count], pages.memory)


def load_too_few_pages(client: Client, pages: Pages) -> None:
    client.load(chain(client, 0, 2), pages.pages(0, 1), pages.memory)


def save_a_key_twice(client: Client, pages: Pages) -> None:
    client.save(2 * chain(client, 0, 1), pages.pages(0, 2), pages.memory)


def match_a_short_key(client: Client, _pages: Pages) -> None:
    client.match([BlockKey(bytes(15))])


def save_to_a_missing_tier(client: Client, pages: Pages) -> None:
    client.save(chain(client, 0, 1), pages.pages(0, 1), pages.memory, ack="ssd")


@pytest.mark.parametrize(
    ("ask", "code", "cause", "cure"),
    [
        (
            register_other_layout,
            ErrorCode.GEOMETRY_MISMATCH,
            "every layer of every plane",
            "register the memory of the model",
        ),
        (save_page_out_of_range, ErrorCode.PAGE_OUT_OF_RANGE, "page 128 is not in this memory", "numbered from 0"),
        (load_too_few_pages, ErrorCode.BAD_ARGUMENT, "2 pages for 2 keys", "give 2 pages per key"),
        (save_a_key_twice, ErrorCode.DUPLICATE_KEY, "listed twice", "name each block once"),
        (match_a_short_key, ErrorCode.BAD_KEY, "has not 16 bytes", "client.keys()"),
        (save_to_a_missing_tier, ErrorCode.TIER_UNAVAILABLE, "configured without", "add a table [ssd]"),
    ],
)
def test_a_worker_that_asks_wrongly_is_told_how_to_ask(
    daemon: DaemonProcess, ask: Callable[[Client, Pages], None], code: ErrorCode, cause: str, cure: str
) -> None:
    """The call raises the code with cause and cure, and the session serves on."""
    with Client(daemon.socket, GEOMETRY) as client:
        pages = Pages(client)
        with pytest.raises(FlexKVError) as caught:
            ask(client, pages)
        assert_told(caught.value, code, cause, cure)
        assert client.save(chain(client, 0, BLOCKS), pages.pages(0, BLOCKS), pages.memory).wait().length == BLOCKS


def assert_told(error: FlexKVError, code: ErrorCode, cause: str, cure: str) -> None:
    assert error.code is code
    assert cause in error.message
    assert cure in error.message


def test_keys_of_a_wrong_length_are_refused_by_the_daemon_too(daemon: DaemonProcess) -> None:
    """A client that does not check its keys hears the same from the daemon."""
    stranger = Stranger(daemon.socket).greet()
    stranger.say(Match(5, bytes(17)))
    reply = stranger.hear()
    stranger.socket.close()
    assert isinstance(reply, Failed)
    assert reply.code == ErrorCode.BAD_KEY
    assert "17 bytes" in reply.message
    assert "exactly 16 bytes" in reply.message


def refusal(daemon: DaemonProcess) -> str:
    """What `flexkvd` says when it does not start, on its own and by `main` alone."""
    command = [sys.executable, "-m", "flexkvd.main", "--config", str(daemon.config)]
    ended = subprocess.run(
        command,
        env=daemon.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr


def assert_refused(daemon: DaemonProcess, code: ErrorCode, *words: str) -> None:
    """It exits with status 2; the last line of its log has the code and every one of the words."""
    [*_, last] = refusal(daemon).splitlines()
    assert f"[{code.value}]" in last
    for word in words:
        assert word in last


def test_a_socket_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    """Daemon and client both name the limit and a way out."""
    long = tmp_path / ("x" * 120)
    daemon = DaemonProcess(tmp_path, {"daemon": {"socket": str(long)}})
    assert_refused(daemon, ErrorCode.BAD_SOCKET_PATH, f"{len(str(long))} bytes", "use 1 to 107")
    with pytest.raises(FlexKVError) as caught:
        Client(long, GEOMETRY)
    assert_told(caught.value, ErrorCode.BAD_SOCKET_PATH, "107", "shorter")


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A read-only file system under the SSD directory: said at start, with what would help."""
    place = tmp_path / "mount"
    place.mkdir()
    with mounted("tmpfs", "ro,size=1m", place) as read_only:
        daemon = DaemonProcess(tmp_path, {"ssd": {"directory": str(read_only / "tier"), "bytes": "16MiB"}})
        assert_refused(daemon, ErrorCode.DIRECTORY_NOT_WRITABLE, str(read_only), "Read-only", "configure another")


def test_a_full_disk_at_start_is_refused(tmp_path: Path) -> None:
    """A disk without room for one segment: said at start."""
    place = tmp_path / "mount"
    place.mkdir()
    with mounted("tmpfs", "size=1m", place) as small:
        daemon = DaemonProcess(tmp_path, {"ssd": {"directory": str(small), "bytes": "64MiB"}})
        assert_refused(daemon, ErrorCode.DISK_FULL, str(small), "full", "free space there")


def test_a_disk_that_fills_up_is_a_smaller_tier(tmp_path: Path) -> None:
    """The oldest make room for the newest, no byte is wrong; faults, log and status say that the disk is full."""
    place = tmp_path / "mount"
    place.mkdir()
    with mounted("tmpfs", "size=20m", place) as small:
        tables = {"ssd": {"directory": str(small), "bytes": "64MiB"}}
        with DaemonProcess(tmp_path, tables) as daemon, Client(daemon.socket, GEOMETRY) as client:
            pages = Pages(client, 64)
            stored = []
            for first in range(0, 1024, 64):
                pages.put_chain(0, first, 64)
                saved = client.save(chain(client, first, 64), pages.pages(0, 64), pages.memory, ack="ssd").wait()
                assert set(saved.outcomes) <= {Outcome.STORED, Outcome.REFUSED, Outcome.THROTTLED}, saved
                stored += [first] if saved.length == 64 else []
            assert len(stored) >= 8  # what fits
            for first in stored:
                pages.wipe(0, 64)
                came = client.load(chain(client, first, 64), pages.pages(0, 64), pages.memory).wait().length
                assert pages.wrong(0, range(first, first + came)) == []
                assert came == 64 or first not in stored[-8:], f"of the newest, {came} of 64 blocks from {first} on"
            tier, counted = daemon.status()["tiers"]["ssd"], daemon.planner()["tiers"]["ssd"]
            assert counted["up"]
            assert counted["used_bytes"] <= counted["capacity_bytes"] < 20 << 20 < tier["capacity_bytes"]
            assert tier["directories"][0]["cut_by_file_system"]
            assert tier["faults"]["full"] == daemon.faults()["ssd_full"] > 0
            assert "is full (No space left" in daemon.log_tail()
            assert "free space there" in daemon.log_tail()
            daemon.settle()
            daemon.recount()


def test_a_bucket_that_does_not_exist_ends_the_daemon(tmp_path: Path) -> None:
    """Waiting does not cure it: the daemon stops, names the bucket and its key, and says what to do."""
    from tests.tiers.s3_backing import shared_server

    server = shared_server()
    s3 = {"bucket": "nowhere", "endpoint_url": server.endpoint_url, "region": "us-east-1"}
    daemon = DaemonProcess(tmp_path, {"s3": s3}, server.environment)
    assert_refused(daemon, ErrorCode.S3_BUCKET_MISSING, "s3://nowhere/", "create the bucket", "s3.bucket")


def test_a_second_daemon_is_refused(tmp_path: Path) -> None:
    """On the same directory, and on the same socket: who is there is named, and goes on serving."""
    (tmp_path / "other").mkdir()
    with DaemonProcess(tmp_path, {"ssd": {"directory": str(tmp_path / "ssd"), "bytes": "16MiB"}}) as first:
        same_directory = {"ssd": {"directory": str(tmp_path / "ssd"), "bytes": "16MiB"}}
        second = DaemonProcess(tmp_path / "other", same_directory)
        assert_refused(
            second, ErrorCode.DIRECTORY_LOCKED, f"process {first.pid}", "stop that daemon", "another directory"
        )
        third = DaemonProcess(tmp_path / "other", {"daemon": {"socket": str(first.socket)}})
        assert_refused(third, ErrorCode.ALREADY_RUNNING, str(first.pid), "stop", "socket")
        with Client(first.socket, GEOMETRY) as client:
            client.ping()
