"""A worker opens the arena for its row path: as the host sees it, or pinned for a device, with a real daemon behind."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from flexkv_py.client import Client
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.tables import Segments
from flexkv_tiers.memory.row_arena import RowArena
from tests.tiers.host_driver import UUID, HostDriver

from .conftest import GEOMETRY, DaemonThread, Worker
from .rows import attach, chunk_of, follow, save

SEGMENT_COUNT = 4


@pytest.fixture
def pinning() -> HostDriver:
    """The worker's driver; the daemon has none."""
    return HostDriver()


class Reader:
    """A row path without requests: where its kernels look segments up."""

    def __init__(self) -> None:
        self.segments = Segments(torch.device("cpu"))
        self.map_arena, self.point_arena = self.segments.map, self.segments.point


def found_at(reader: Reader, frame: int, length: int) -> bytes:
    """The bytes that a kernel would find for this frame."""
    segments = reader.segments
    segment, unit = divmod(frame, int(segments.units[0]))
    return ctypes.string_at(int(segments.bases[segment]) + unit * 4096, length)


def test_kernels_find_granted_frames_through_what_was_opened(
    start: Callable[..., DaemonThread], pinning: HostDriver
) -> None:
    """On the host and on a device that pins read-only mappings: the bases lead to the saved rows."""
    pinning.read_only_supported = True
    with Client(start().socket, GEOMETRY) as client:
        worker = Worker(client)
        worker.fill(3)
        request, table = attach(client, 1, save(worker, 3, 2))
        follow(client, request, table, lambda: len(table.frames) == 2 * GEOMETRY.chunk_count)
        for opened in (RowArena(), RowArena(UUID, pinning)):
            reader = Reader()
            assert not opened.writable
            with opened:
                opened.open(client.map_arena(writable=opened.writable), reader)
                for (block, chunk), frame in table.frames.items():
                    length = GEOMETRY.chunk_bytes[chunk]
                    assert found_at(reader, frame, length) == chunk_of(worker, block, chunk)
        assert pinning.read_only == [True] * SEGMENT_COUNT
        assert not pinning.pinned
        request.detach()


def test_a_device_that_must_write_needs_a_shared_arena(start: Callable[..., DaemonThread], pinning: HostDriver) -> None:
    """The daemon refuses it with both cures; so does the worker's own half, should it map read-only all the same."""
    opened, reader = RowArena(UUID, pinning), Reader()
    with Client(start().socket, GEOMETRY) as client:
        assert opened.writable
        for mapped in (lambda: client.map_arena(writable=opened.writable), client.map_arena):
            with pytest.raises(FlexKVError, match="shared") as refused:
                opened.open(mapped(), reader)
            assert refused.value.code is ErrorCode.UNSUPPORTED
    assert "pin" not in pinning.calls


def test_a_shared_arena_is_pinned_writable_and_again_after_a_restart(
    start: Callable[..., DaemonThread], pinning: HostDriver
) -> None:
    """The next life's arena takes the place of the last one's, which is let go of; closing lets go of all."""
    opened, reader = RowArena(UUID, pinning), Reader()
    daemon, bases = start(row_path={"arena": "shared"}), []
    client = Client(daemon.socket, GEOMETRY)
    for _ in range(2):
        opened.open(client.map_arena(writable=opened.writable), reader)
        assert len(pinning.pinned) == SEGMENT_COUNT
        bases.append(reader.segments.bases[:SEGMENT_COUNT].tolist())
        if len(bases) == 1:
            assert daemon.stop() == 0
            daemon = start(row_path={"arena": "shared"})
            client.connect()
    assert bases[0] != bases[1]
    assert bases[1] == list(pinning.pinned)
    assert pinning.read_only == [False] * 2 * SEGMENT_COUNT
    client.close()
    opened.close()
    opened.close()
    assert not pinning.pinned


def test_a_reader_that_refuses_leaves_nothing_pinned(
    start: Callable[..., DaemonThread], pinning: HostDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where requests still read another arena, the one that was to be opened is let go of again."""
    pinning.read_only_supported = True
    opened, reader = RowArena(UUID, pinning), Reader()

    def refuse(*_: object) -> None:
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, "disown them first")

    monkeypatch.setattr(reader, "point_arena", refuse)
    with Client(start().socket, GEOMETRY) as client, pytest.raises(FlexKVError, match="disown"):
        opened.open(client.map_arena(), reader)
    assert "pin" in pinning.calls
    assert not pinning.pinned
