"""Plays a recording into a fresh planner, and says whether it ends as the one that was recorded, or where it does not.

Owns the verdict. Called by `flexkv replay-record` and by tests.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any

import msgspec

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import Event, StoryEvent
from flexkv_py.core.planner import Planner
from flexkv_py.keys import KEY_BYTES, BlockKey
from flexkvd.planning import make_planner
from flexkvd.recorder.digest import digest_of, witness_of
from flexkvd.recorder.events import EventReader, bad_recording
from flexkvd.recorder.file import Recording, decompress

OUR_PACKAGES = ("flexkv_py/", "flexkv_tiers/", "flexkvd/")


class Verdict(StrEnum):
    """How a replay ended."""

    SAME = "same"
    """In the state that was recorded."""
    STOPPED = "stopped"
    """Where it was told to."""
    FAILED_THE_SAME = "failed_the_same"
    """In the recorded bug, at the recorded event."""
    FAILED = "failed"
    """In a bug that was not recorded, or not there."""
    DIFFERS = "differs"
    """In another state."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The end of a replay. `event` is the last one played, `number` its number."""

    verdict: Verdict
    number: int
    event: Event | None
    digest: str
    since: int
    """DIFFERS: up to this event all was the same, as far as marks tell."""
    failure: str
    key: BlockKey | None
    """The block that event was about last."""
    story: list[StoryEvent]


def replay(
    recording: Recording,
    until: int = 0,
    on_event: Callable[[int, Event], None] = lambda _number, _event: None,
    make: Callable[[PlannerConfig], Planner] = make_planner,
) -> Replayed:
    """Play it in a planner that `make` makes, up to event `until` unless that is 0.

    `on_event` is told of each event before the planner is. Raises BAD_RECORDING when the recording is not complete, or
    of another version.
    """
    if not recording.complete:
        raise bad_recording(
            f"the recording begins with event {recording.pieces[0].first if recording.pieces else 0}: older ones had "
            "to make room, so it can be read but not replayed. Read it with --print, or give [recorder] more bytes"
        )
    planner = planner_of(recording, make)
    state, agreed, number = planner.state, 0, 0
    event: Event | None = None
    named: BlockKey | None = None
    for number, record in read_records(recording, planner):
        if isinstance(record, bytes):
            if record != witness_of(state):
                return _end(planner, Verdict.DIFFERS, number - 1, event, named, since=agreed)
            agreed = number - 1
            continue
        event = record
        on_event(number, event)
        named = _key_of(event, planner)
        try:
            planner.handle(event)
        except Exception as error:
            failure = words_of(error)
            same = number == recording.events and failure == recording.failure
            verdict = Verdict.FAILED_THE_SAME if same else Verdict.FAILED
            return _end(planner, verdict, number, event, named, failure=failure)
        if number == until:
            return _end(planner, Verdict.STOPPED, number, event, named)
    end = digest_of(state) if recording.digest else ""
    same = end == recording.digest and witness_of(state) == recording.mark
    return _end(planner, Verdict.SAME if same else Verdict.DIFFERS, number, event, named, since=agreed)


def read_records(recording: Recording, planner: Planner) -> Iterator[tuple[int, Event | bytes]]:
    """Every event with its number; a mark has the number of the event after it."""
    reader = EventReader(recording.shapes, planner.event_types)
    for piece in recording.pieces:
        number = piece.first
        for record in reader.read(decompress(piece), piece.records):
            yield number, record
            number += not isinstance(record, bytes)


def planner_of(recording: Recording, make: Callable[[PlannerConfig], Planner] = make_planner) -> Planner:
    """A fresh planner, made as the recorded one was. Raises BAD_RECORDING."""
    known = {field.name for field in fields(PlannerConfig)}
    if unknown := sorted(recording.config.keys() - known):
        raise bad_recording(
            f"the recorded planner was told {', '.join(unknown)}, which this version does not know: replay it with "
            "the version of flexkv that wrote it"
        )
    try:
        return make(msgspec.convert(recording.config, PlannerConfig))
    except (msgspec.MsgspecError, AssertionError, KeyError) as error:
        raise bad_recording(
            f"the recorded planner cannot be made here ({error}): use the version that wrote it"
        ) from error


def words_of(error: BaseException) -> str:
    """A bug in one line: what, and where in our code. The same bug of the same version has the same words."""
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        for package in OUR_PACKAGES:
            at = frame.filename.rfind(package)
            if at >= 0:
                where = f" ({frame.filename[at:]}:{frame.lineno} in {frame.name})"
                break
    said = str(error).partition("\n")[0]
    return type(error).__name__ + (f": {said}" if said else "") + where


def _end(
    planner: Planner,
    verdict: Verdict,
    number: int,
    event: Event | None,
    named: BlockKey | None,
    *,
    since: int = 0,
    failure: str = "",
) -> Replayed:
    story = planner.state.story
    told = bool(event and story and story[-1][0] == event.now_ns)
    key = story[-1][1] if told else named
    lines = [] if key is None else planner.story(key)
    return Replayed(verdict, number, event, digest_of(planner.state), since, failure, key, lines)


def _key_of(value: Any, planner: Planner) -> BlockKey | None:
    """The first block an event names, by its key or by a transfer of it."""
    if isinstance(value, bytes):
        return BlockKey(value) if len(value) == KEY_BYTES else None
    if is_dataclass(value):
        transfer = planner.state.transfers.get(getattr(value, "transfer", 0))
        if transfer is not None:
            return transfer.copy.block.key
        value = [getattr(value, field.name) for field in fields(value)]
    if not isinstance(value, list | tuple):
        return None
    found = (_key_of(each, planner) for each in value)
    return next((key for key in found if key is not None), None)
