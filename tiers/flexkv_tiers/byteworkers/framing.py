"""What travels on the socket between the daemon and a byte worker.

A frame is a fixed head (body length, call number, verb) and a body that only the tier's own two ends
understand. Bytes of blocks never travel here: both ends map the arena. Called by `worker` and `child`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import msgspec

BODY_BYTES_MAX = 4 << 20
_HEAD = struct.Struct("<IIB")
HEAD_BYTES = _HEAD.size


class Verb(IntEnum):
    """What a frame asks or tells."""

    OPEN = 1
    """To the child, once and first: an `Opening`."""
    CALL = 2
    """To the child: run this request."""
    STOP = 3
    """To the child: let go of this call's frames soon. It still ends with END or BUG."""
    REPLY = 4
    """To the daemon: one of any number of replies of a call."""
    END = 5
    """To the daemon: the call is over and the child touches none of its frames any more."""
    BUG = 6
    """As END, with a traceback: the handler raised what it must not raise."""


class Opening(msgspec.Struct, frozen=True):
    """What a child needs before its first call: the arena's descriptors and its tier's options."""

    segment_fds: list[int]
    segment_bytes: int
    threads: int
    options: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """A frame without its body."""

    body_bytes: int
    call: int
    verb: Verb


def pack_frame(verb: Verb, call: int, body: bytes = b"") -> bytes:
    """One frame, ready to be sent in one piece."""
    assert len(body) <= BODY_BYTES_MAX
    return _HEAD.pack(len(body), call, verb) + body


def parse_head(raw: bytes | bytearray) -> Head:
    """Both ends are ours: a head that does not parse is a bug, not bad input."""
    length, call, verb = _HEAD.unpack(raw)
    assert length <= BODY_BYTES_MAX
    return Head(length, call, Verb(verb))
