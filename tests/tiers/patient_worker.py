"""A byte worker for tests: does to its frames what a request says, for as long as it says."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import msgspec

from flexkv_tiers.byteworkers.child import Call, serve
from flexkv_tiers.memory import Arena

FRAME_BYTES = 4096


class Scribble(msgspec.Struct):
    """Write counting bytes to `frame`, a reply a turn, for `turns`; `deaf` ignores being stopped."""

    frame: int = 0
    turns: int = 1
    pause_s: float = 0.0
    deaf: bool = False
    raises: bool = False


class PatientWorker:
    """The handler."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def __call__(self, raw: bytes, call: Call) -> Iterator[bytes]:
        request = msgspec.msgpack.decode(raw, type=Scribble)
        if request.raises:
            raise ValueError("no such luck")
        view = self._arena.view(request.frame, FRAME_BYTES)
        for turn in range(request.turns):
            if call.stopped and not request.deaf:
                yield b"stopped"
                return
            view[:] = bytes([turn % 255 + 1]) * FRAME_BYTES
            yield b"%d" % turn
            time.sleep(request.pause_s)


def _open(options: bytes, arena: Arena) -> PatientWorker:
    if options == b"crash":
        os._exit(3)
    return PatientWorker(arena)


if __name__ == "__main__":
    serve(_open)
