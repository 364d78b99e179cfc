"""What is granted on the row path, held, and given back: pressure, late and lost acks, ranks, replays, lost workers."""

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flexkv_py.client import Client
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import Ack, Attach, Attached, Detach, Done, Failed, LetGo, MapArena, Pages, Report

from .conftest import GEOMETRY, DaemonThread, Worker
from .rows import (
    CHUNKS,
    SECONDS_MAX,
    SMALL,
    SMALL_BLOCKS,
    attach,
    chunk_of,
    follow,
    readers,
    refused,
    save,
    tokens,
    until,
    used_pages,
)
from .test_protocol import Stranger


class Scene:
    """A daemon with a small DRAM over an SSD, a worker that saves, and a request that holds most of DRAM."""

    def __init__(self, daemon: DaemonThread) -> None:
        self.daemon = daemon
        self.client = Client(daemon.socket, GEOMETRY, instance="engine")
        self.worker = Worker(self.client)
        self.worker.fill(1)
        self.keys = save(self.worker, 1, SMALL_BLOCKS - 4, ack="ssd")
        self.request, self.table = attach(self.client, 7, self.keys)
        follow(self.client, self.request, self.table, lambda: len(self.table.frames) == len(self.keys) * CHUNKS)
        self.request.ack(self.table.version)

    def press(self, seed: int, block_count: int) -> Any:
        """A save for which DRAM has no room while the request holds its frames."""
        other = self.client.keys(tokens(seed, block_count))
        return self.client.save(other, self.worker.pages(0, block_count), self.worker.memory)

    def faults(self) -> list[dict[str, Any]]:
        return self.daemon.call(self.daemon.parts.faults.recent)

    def revoked(self) -> dict[tuple[int, int], int]:
        """What the daemon wants back, once it has said so."""
        follow(self.client, self.request, self.table, lambda: bool(self.table.revoked))
        return self.table.revoked


@pytest.fixture
def make(start: Callable[..., DaemonThread], tmp_path: Path) -> Any:
    scenes: list[Scene] = []

    def make(**row_path: object) -> Scene:
        ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
        (tmp_path / "ssd").mkdir()
        scenes.append(Scene(start(dram=SMALL, ssd=ssd, row_path=row_path)))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.client.close()


def test_a_revoked_frame_keeps_its_bytes_until_it_is_acknowledged(make: Callable[..., Scene]) -> None:
    """While the ack is delayed, whatever else is saved goes elsewhere; afterwards the frames are used again."""
    scene = make()
    scene.press(2, 16).wait()
    revoked = dict(scene.revoked())
    content = {spot: chunk_of(scene.worker, *spot) for spot in revoked}
    for seed in range(3, 8):
        scene.press(seed, 16).wait()
        assert all(scene.table.bytes_at(frame, spot[1]) == content[spot] for spot, frame in revoked.items())
    scene.request.ack(scene.table.version)
    for seed in range(8, 12):
        scene.press(seed, 16).wait()
    assert any(scene.table.bytes_at(frame, spot[1]) != content[spot] for spot, frame in revoked.items())
    scene.table.apply(scene.request.pages())
    assert all(scene.table.read(*spot) == chunk_of(scene.worker, *spot) for spot in scene.table.frames)


def test_a_worker_that_never_acknowledges_loses_its_session(make: Callable[..., Scene]) -> None:
    """After `ack_s_max` it is told ACK_OVERDUE; its frames stay held until it says itself that it reads no more.

    The operator is told which process it was.
    """
    scene = make(ack_s_max=0.2)
    scene.press(2, 16).wait()
    revoked = dict(scene.revoked())
    with pytest.raises(FlexKVError) as lost:
        follow(scene.client, scene.request, scene.table, lambda: False)
    assert lost.value.code in (ErrorCode.ACK_OVERDUE, ErrorCode.DAEMON_LOST)  # the second where it was waiting
    assert "ack_s_max" in refused(ErrorCode.DAEMON_LOST, scene.client.page_changes).message
    refused(ErrorCode.ACK_OVERDUE, scene.request.pages)
    refused(ErrorCode.ACK_OVERDUE, scene.request.ack, scene.table.version)
    until(lambda: readers(scene.daemon) == 1)
    [fault] = scene.faults()
    assert fault["what"] == "session ended: ack_overdue"
    assert f"pid {os.getpid()}" in fault["detail"]
    scene.client.ping()  # connected anew, and the old mapping is as it was
    held = scene.table.frames | revoked
    scene.press(3, 16).wait(timeout_s=1)
    assert all(scene.table.bytes_at(frame, spot[1]) == chunk_of(scene.worker, *spot) for spot, frame in held.items())
    before = used_pages(scene.daemon)
    scene.request.detach()
    scene.client.ping()
    assert readers(scene.daemon) == 0
    assert used_pages(scene.daemon) <= before
    assert scene.press(4, 32).wait().done
    again, table = attach(scene.client, 7, scene.keys)  # the number is free again
    follow(scene.client, again, table, lambda: bool(table.frames))


@pytest.fixture
def stranger(daemon: DaemonThread) -> Iterator[Stranger]:
    stranger = Stranger(daemon.socket).greet()
    yield stranger
    stranger.socket.close()


def test_repeated_and_old_acks_change_nothing(daemon: DaemonThread, stranger: Stranger) -> None:
    """An ack that comes twice, or after a newer one, is answered like the first; one of the future ends the session."""
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client)
        worker.fill(1)
        keys = save(worker, 1, 2)
    stranger.say(Attach(5, 7, b"".join(keys[:1])), Attach(6, 7, b"".join(keys[1:]), 1))
    versions, attached = [], []
    while len(attached) < 2 or len(versions) < 2:
        message = stranger.hear()
        if isinstance(message, Pages):
            versions.append(message.version)
        else:
            assert isinstance(message, Attached)
            attached.append(message.block_count)
    assert (attached, versions) == ([1, 2], [1, 2])
    stranger.say(*(Ack(10 + at, 7, version) for at, version in enumerate((2, 2, 1, 0))))
    assert [stranger.hear() for _ in range(4)] == [Done(10 + at) for at in range(4)]
    stranger.say(Ack(20, 7, 99))
    farewell = [message for message in iter(stranger.hear, None) if isinstance(message, Failed)]
    assert [(message.id, message.code) for message in farewell] == [(0, "bad_argument")]
    assert "99" in farewell[0].message


def test_all_ranks_of_a_request_must_acknowledge(make: Callable[..., Scene]) -> None:
    """Two ranks of one instance get the same versions with the same contents; one ack alone frees nothing."""
    scene = make()
    with Client(scene.daemon.socket, GEOMETRY, instance="engine") as other:
        request, table = attach(other, 7, scene.keys)
        follow(other, request, table, lambda: table.frames == scene.table.frames)
        request.ack(table.version)
        scene.press(2, 16).wait()
        revoked = dict(scene.revoked())
        follow(other, request, table, lambda: table.revoked == revoked)
        request.ack(table.version)
        other.ping()
        for seed in range(3, 8):
            scene.press(seed, 16).wait()
            for spot, frame in revoked.items():
                assert table.bytes_at(frame, spot[1]) == chunk_of(scene.worker, *spot)
        request.detach()


def test_what_a_step_missed_comes_and_stays(make: Callable[..., Scene]) -> None:
    """Absent rows that are reported are read from SSD, chunk by chunk, granted, and not revoked before the replay."""
    scene = make()
    scene.press(2, 16).wait()
    absent = sorted(scene.revoked())
    scene.request.ack(scene.table.version)
    wanted = absent[:3]
    packed = b"".join(struct.pack("<3I", 7, *spot) for spot in wanted)
    scene.client.report(absents=packed)
    follow(scene.client, scene.request, scene.table, lambda: all(spot in scene.table.frames for spot in wanted))
    scene.request.ack(scene.table.version)
    for seed in range(3, 6):
        scene.press(seed, 16).wait()
        scene.table.apply(scene.request.pages())
        scene.request.ack(scene.table.version)
        assert all(scene.table.read(*spot) == chunk_of(scene.worker, *spot) for spot in wanted)
    scene.client.report(replayed=struct.pack("<I", 7))
    scene.client.ping()


def test_rows_nobody_has_are_refused_by_a_word(make: Callable[..., Scene]) -> None:
    """A step that needs a block which is in no tier is told so at once, and may recompute."""
    scene = make()
    request = scene.client.attach(8, scene.client.keys(tokens(99, 1)))
    scene.client.ping()
    request.pages()
    scene.client.report(absents=struct.pack("<3I", 8, 0, 0))
    assert scene.client.wait_for_pages(SECONDS_MAX)
    [said] = scene.client.poll()
    assert (said.request, said.outcome) == (8, "lost")
    assert not scene.client.wait_for_pages(0.01)
    assert [fault["what"] for fault in scene.faults()] == ["replay refused: lost"]
    request.detach()


BAD = {
    "an unknown request, acknowledged": (Ack(5, 9, 0), ErrorCode.UNKNOWN_REQUEST),
    "an unknown request, detached": (Detach(5, 9), ErrorCode.UNKNOWN_REQUEST),
    "no keys": (Attach(5, 9, b""), ErrorCode.BAD_ARGUMENT),
    "too many keys": (Attach(5, 9, b"".join(n.to_bytes(16, "little") for n in range(257))), ErrorCode.LIMIT_EXCEEDED),
    "half a key": (Attach(5, 9, bytes(15)), ErrorCode.BAD_KEY),
    "a key twice": (Attach(5, 9, bytes(32)), ErrorCode.DUPLICATE_KEY),
    "a number that is no u32": (Attach(5, 1 << 32, bytes(16)), ErrorCode.BAD_ARGUMENT),
    "a hole": (Attach(5, 1, bytes(16), 3), ErrorCode.BAD_ARGUMENT),
    "other keys for blocks attached already": (Attach(5, 1, bytes(16)), ErrorCode.BAD_ARGUMENT),
    "more blocks than configured": (
        Attach(5, 1, b"".join(number.to_bytes(16, "little") for number in range(100, 108)), 1),
        ErrorCode.LIMIT_EXCEEDED,
    ),
    "more requests than configured": (Attach(5, 3, bytes(16)), ErrorCode.LIMIT_EXCEEDED),
    "a block beyond": (Report(5, struct.pack("<4I", 1, 0, 1, 1)), ErrorCode.BAD_ARGUMENT),
    "an absent block beyond": (Report(5, b"", struct.pack("<3I", 1, 1, 0)), ErrorCode.BAD_ARGUMENT),
    "an absent chunk beyond": (Report(5, b"", struct.pack("<3I", 1, 0, CHUNKS)), ErrorCode.BAD_ARGUMENT),
    "a layer group beyond": (Report(5, struct.pack("<4I", 1, 99, 0, 1)), ErrorCode.BAD_ARGUMENT),
    "half an entry": (Report(5, bytes(17)), ErrorCode.BAD_ARGUMENT),
    "a report too long": (Report(5, bytes(16 * 4097)), ErrorCode.LIMIT_EXCEEDED),
    "segments out of order": (MapArena(5, 3), ErrorCode.BAD_ARGUMENT),
    "writable segments": (MapArena(5, 0, True), ErrorCode.UNSUPPORTED),
    "its own living session let go of": (LetGo(5, 1), ErrorCode.BAD_ARGUMENT),
}


@pytest.fixture
def attached(start: Callable[..., DaemonThread]) -> Any:
    """A bare socket with two requests of a block each, of the two it may have."""
    daemon = start(row_path={"requests_per_session_max": 2, "blocks_per_request_max": 8})
    stranger = Stranger(daemon.socket).greet()
    stranger.say(Attach(2, 1, b"k" * 16), Attach(3, 2, b"k" * 16))
    heard = [stranger.hear() for _ in range(4)]
    assert sum(isinstance(message, Attached) for message in heard) == 2
    yield stranger
    stranger.socket.close()


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_a_coded_error(attached: Stranger, name: str) -> None:
    """Each gets its code and a sentence, and the session goes on."""
    message, code = BAD[name]
    attached.say(message)
    assert attached.hears_code(5) == code
    attached.say(Detach(6, 1))
    assert attached.hear() == Done(6)


def test_a_scheduler_reads_no_rows(daemon: DaemonThread) -> None:
    """A session without memory has no row path either."""
    with Client(daemon.socket, GEOMETRY, role="scheduler") as client:
        refused(ErrorCode.UNSUPPORTED, client.map_arena)
        refused(ErrorCode.UNSUPPORTED, client._ask, Attach(0, 1, bytes(16)), Attached)


def test_what_is_said_of_a_detached_request_is_dropped(daemon: DaemonThread) -> None:
    """A report on its way while its request is detached is no error: its engine could not know."""
    with Client(daemon.socket, GEOMETRY) as client:
        client.attach(1, client.keys(tokens(1, 2)))
        client.report(struct.pack("<8I", 1, 0, 1, 5, 2, 0, 9, 5), struct.pack("<3I", 2, 9, 0), struct.pack("<I", 2))
        client.ping()
        client.page_changes()
