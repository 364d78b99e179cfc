"""`flexkv replay-record FILE`: plays a dump of the flight recorder into a fresh planner, and says how that ends."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flexkv_py.core.messages import Event
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli.arguments import positive
from flexkvd.cli.connecting import add_command
from flexkvd.recorder.file import Recording, unpack
from flexkvd.recorder.replay import Replayed, Verdict, planner_of, read_records, replay
from flexkvd.recorder.words import event_line, plain_event, story_line

ABOUT = (
    "Plays a dump of the flight recorder into a fresh planner: no daemon, no bytes of blocks. The planner knows no "
    "clock and no chance, so it must end in the state that was recorded. Where it does not, or meets a bug, the event "
    "is printed, and the story of the block it was about. The version must be the one that recorded.\n\n"
    "Exits with 0 when it ends as recorded or stops at --until, with 1 when it does not or meets a bug. With --json "
    "the last line is the result; with --print there is a line for each event before it."
)
EXAMPLES = ("flexkv replay-record FILE", "flexkv replay-record --until 4711 --print FILE | tail -20")
SENTENCES = {
    Verdict.SAME: "ends in the state that was recorded",
    Verdict.STOPPED: "stopped there, as it was told to",
    Verdict.FAILED_THE_SAME: "meets the bug that was recorded, at the same event",
    Verdict.FAILED: "meets a bug that was not recorded there",
    Verdict.DIFFERS: "is in another state than was recorded",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `replay-record` to the commands of `flexkv`."""
    about = ("replay-record", "play a dump of the flight recorder again", ABOUT, EXAMPLES)
    parser = add_command(commands, *about, daemon=False)
    parser.add_argument("file", type=Path, metavar="FILE", help="a dump of `flexkv record` or of the daemon")
    parser.add_argument("--until", type=positive, default=0, metavar="N", help="stop after event N")
    parser.add_argument(
        "--print", action="store_true", dest="show", help="print every event; a dump that is not complete is only read"
    )
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Run the command; 1 unless the replay ends as recorded."""
    try:
        recording = unpack(chosen.file.read_bytes())
    except OSError as error:
        why = f"{chosen.file} cannot be read ({error.strerror}): name a file written by `flexkv record`"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, why) from error

    def show(number: int, event: Event) -> None:
        if chosen.show:
            line = json.dumps({"number": number, **plain_event(event)}) if chosen.json else event_line(number, event)
            print(line)

    if not chosen.json:
        print(_head(recording))
    if chosen.show and not recording.complete:
        for number, record in read_records(recording, planner_of(recording)):
            if not isinstance(record, bytes) and number <= (chosen.until or number):
                show(number, record)
        return 0
    replayed = replay(recording, chosen.until, show)
    if chosen.json:
        print(json.dumps(_result(recording, replayed)))
    else:
        _print_end(recording, replayed)
    return 0 if replayed.verdict in (Verdict.SAME, Verdict.STOPPED) else 1


def _head(recording: Recording) -> str:
    kept = sum(piece.events for piece in recording.pieces)
    which = "all" if recording.complete else f"only the last {kept}, the ring had no room for more"
    return (
        f"recorded by flexkvd {recording.program}, {recording.taken_at} ({recording.why}): {recording.events} events, "
        f"{which}" + (f"\nrecorded bug: {recording.failure}" if recording.failure else "")
    )


def _print_end(recording: Recording, replayed: Replayed) -> None:
    print(f"event {replayed.number} of {recording.events}: the planner {SENTENCES[replayed.verdict]}")
    if replayed.verdict is Verdict.SAME:
        checked = f"digest {replayed.digest}" if recording.digest else "by its mark; it was too large for a digest"
        print(f"{checked}{_elsewhere(recording)}")
        return
    if replayed.verdict is Verdict.DIFFERS:
        print(f"up to event {replayed.since} it was the same: something of it changed by no event, or differently here")
    if replayed.failure:
        print(f"bug: {replayed.failure}")
    print(f"digest {replayed.digest}")
    if replayed.event is not None:
        print(event_line(replayed.number, replayed.event))
    if replayed.key is not None:
        print(f"story of {replayed.key.hex()}:")
        print("\n".join(f"  {story_line(line)}" for line in replayed.story) or "  nothing is known of it")


def _elsewhere(recording: Recording) -> str:
    return "\nthe recorded bug is not the planner's: look at the daemon's log" if recording.failure else ""


def _result(recording: Recording, replayed: Replayed) -> dict[str, Any]:
    return {
        "verdict": replayed.verdict.value,
        "events": recording.events,
        "number": replayed.number,
        "same_until": replayed.since,
        "digest": replayed.digest,
        "recorded_digest": recording.digest or None,
        "failure": replayed.failure or None,
        "recorded_failure": recording.failure or None,
        "event": None if replayed.event is None else plain_event(replayed.event),
        "key": None if replayed.key is None else replayed.key.hex(),
        "story": [
            {"now_ns": line.now_ns, "what": line.what, "tier": line.tier.name.lower(), "detail": line.detail}
            for line in replayed.story
        ],
    }
