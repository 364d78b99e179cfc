"""The ring: bounded, honest about what it lost, and cheap."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Iterator

import pytest

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import MatchAsked, Tier, TierChanged, TimePassed
from flexkv_py.core.planner import Planner
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import KeyRun
from flexkvd.recorder.file import unpack
from flexkvd.recorder.replay import read_records, replay
from flexkvd.recorder.ring import EVENTS_PER_MARK, Recorder

CAPACITY_BYTES = 256 << 10


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder(Planner(PlannerConfig()), CAPACITY_BYTES, clock_ns=lambda: 10_000_000_000)
    yield made
    made.close()


def fill(recorder: Recorder, count: int) -> None:
    """Matches of keys that do not compress, one a microsecond."""
    chance = random.Random(1)
    for number in range(count):
        recorder.note(MatchAsked(1, number, KeyRun(chance.randbytes(160)), (), 0, 1000 * number))


def test_a_ring_that_has_wrapped_says_so(recorder: Recorder) -> None:
    """It stays within its bytes, holds the newest events in a row, and its dump is read but not replayed."""
    fill(recorder, 10_000)
    facts = recorder.facts()
    assert facts["complete"] is False
    assert CAPACITY_BYTES // 2 < facts["bytes"] <= CAPACITY_BYTES
    recording = unpack(recorder.dump())
    planner = Planner(PlannerConfig())
    numbers = [number for number, record in read_records(recording, planner) if not isinstance(record, bytes)]
    assert numbers == list(range(10_001 - facts["events"], 10_001))
    assert (recording.events, recording.complete) == (10_000, False)
    with pytest.raises(FlexKVError, match=rf"begins with event {numbers[0]}\b.*--print.*\[recorder\]") as refused:
        replay(recording)
    assert refused.value.code is ErrorCode.BAD_RECORDING


def test_a_ring_with_room_has_everything(recorder: Recorder) -> None:
    """Until then nothing is lost, its facts say since when it records, and a dump changes nothing of it."""
    assert recorder.facts()["events"] == 0
    fill(recorder, 500)
    facts = recorder.facts()
    assert (facts["events"], facts["complete"], facts["since_s"], facts["dumps"]) == (500, True, 10.0, 0)
    first, second = unpack(recorder.dump()), unpack(recorder.dump())
    assert first.pieces == second.pieces
    assert [piece.first for piece in first.pieces] == sorted({piece.first for piece in first.pieces})
    assert sum(piece.events for piece in first.pieces) == 500
    assert sum(piece.records - piece.events for piece in first.pieces) == -(-500 // EVENTS_PER_MARK)
    assert recorder.facts()["dumps"] == 2


def test_a_recorder_that_is_off_refuses_to_dump() -> None:
    """Without room for events there is nothing to dump, and the refusal says which key turns it on."""
    off = Recorder(Planner(PlannerConfig()), 0)
    with pytest.raises(FlexKVError, match=r"\[recorder\] bytes") as refused:
        off.dump()
    assert refused.value.code is ErrorCode.UNSUPPORTED
    off.close()


def test_an_event_that_cannot_be_written_down_ends_no_daemon(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """A text that is no Unicode: the log has the bug, the recorder is off, and whoever asks for a dump is told so."""
    fill(recorder, 10)
    recorder.note(TierChanged(Tier.SSD, False, "a path with \udcff", 1))
    fill(recorder, 10)
    assert "off until the next start: a bug at TierChanged" in caplog.text
    assert (recorder.facts()["bytes"], recorder.facts()["capacity_bytes"]) == (0, 0)
    with pytest.raises(FlexKVError, match="off"):
        recorder.dump()


def test_full_pieces_are_compressed_elsewhere(recorder: Recorder) -> None:
    """No event waits for zstd: a thread does it, and ends with the recorder, which still can be dumped."""
    fill(recorder, 2_000)
    assert any(thread.name.startswith("recorder") for thread in threading.enumerate())
    recorder.close()
    assert not any(thread.name.startswith("recorder") for thread in threading.enumerate())
    assert unpack(recorder.dump()).events == 2_000


def test_an_event_costs_less_than_the_planner_needs_for_it() -> None:
    """So it is even for an event that changes nothing, in CPU seconds of one thread, measured in turns."""
    planner, events = Planner(PlannerConfig()), [TimePassed(0)] * 20_000
    recorder = Recorder(planner, 1 << 30)
    gc.disable()
    try:
        noted, handled = [], []
        for _ in range(5):
            noted.append(_cpu_s(recorder.note, events))
            handled.append(_cpu_s(planner.handle, events))
    finally:
        gc.enable()
        recorder.close()
    assert min(noted) < min(handled)


def _cpu_s(function: object, events: list[TimePassed]) -> float:
    started_s = time.thread_time()
    for event in events:
        function(event)  # type: ignore[operator]
    return time.thread_time() - started_s
