"""What is taken for a recording, and what is not."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
import pytest
from xxhash import xxh3_128_digest

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import TimePassed
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.recorder.file import Piece, pack, unpack
from flexkvd.recorder.replay import Verdict, replay
from tests.recorder.recorded import RecordedPlanner


@pytest.fixture
def planner() -> Iterator[RecordedPlanner]:
    made = RecordedPlanner(PlannerConfig())
    for now_ns in range(600):
        made.handle(TimePassed(now_ns))
    yield made
    made.recorder.close()


@pytest.fixture
def dump(planner: RecordedPlanner) -> bytes:
    return planner.recorder.dump()


def refusal(data: bytes) -> str:
    """The sentence with which bytes are refused, wherever that happens."""
    with pytest.raises(FlexKVError) as refused:
        replay(unpack(data))
    assert refused.value.code is ErrorCode.BAD_RECORDING
    return refused.value.message


def test_a_dump_replays_to_its_digest(dump: bytes) -> None:
    """600 events, read from the bytes of a dump, end in the digest that is in them."""
    end = replay(unpack(dump))
    assert (end.verdict, end.number, end.digest) == (Verdict.SAME, 600, unpack(dump).digest)


def test_garbage_and_foreign_files_are_refused(dump: bytes) -> None:
    """Nothing, text, a foreign file and a dump whose first byte is wrong: each is no recording, with the cure."""
    for data in (b"", b"flexkvFR", b"#!/bin/sh\n" * 100, bytes(4096), b"F" + dump[1:]):
        assert "no recording of flexkvd" in refusal(data)


def test_a_dump_cut_short_anywhere_is_refused(dump: bytes) -> None:
    """Every length but the right one is told; none is read in part."""
    for length in range(len(dump)):
        refusal(dump[:length])
    assert "copy it again" in refusal(dump[:-1])
    assert "added to" in refusal(dump + b"\x00")


def test_a_byte_that_changed_is_found(dump: bytes) -> None:
    """A flipped bit in any place of the file is refused."""
    for at in range(0, len(dump), 7):
        refusal(dump[:at] + bytes([dump[at] ^ 1]) + dump[at + 1 :])


def test_a_newer_format_and_newer_settings_are_refused_by_name(planner: RecordedPlanner, dump: bytes) -> None:
    """Another version of the format, or a planner told what we do not know, names the cure: the version that wrote."""
    assert "format 2" in refusal(dump[:8] + struct.pack("<I", 2) + dump[12:])
    recording = unpack(dump)
    newer = msgspec.structs.replace(recording, config=recording.config | {"moon_phase": 1})
    assert "moon_phase" in refusal(pack(newer))
    wrong = msgspec.structs.replace(recording, config=recording.config | {"tiers": ["moon"]})
    assert "cannot be made here" in refusal(pack(wrong))


def test_a_body_that_is_no_recording_is_refused(dump: bytes) -> None:
    """A right checksum over something else, and a piece that cannot be unpacked or claims to be endless."""
    body = msgspec.msgpack.encode({"program": "0.1"})
    head = struct.pack("<8sIQ16s", b"flexkvFR", 1, len(body), xxh3_128_digest(body))
    assert "version" in refusal(head + body)
    recording = unpack(dump)
    for frame in (b"", b"not zstd at all", bytes.fromhex("28b52ffde0ffffffffffff0000")):
        piece = Piece(1, 0, 1, 1, frame)
        refusal(pack(msgspec.structs.replace(recording, pieces=[piece])))
