"""The form of a dump: `magic ‖ version ‖ length of the body ‖ its checksum ‖ body`, and the body one msgpack object.

Owns what a file must have to be taken for a recording: garbage, a file cut short, a damaged byte or another version
raise BAD_RECORDING before anything of it is believed. Events lie in pieces, each compressed by itself.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
from xxhash import xxh3_128_digest

from flexkvd.recorder.events import Shapes, bad_recording

MAGIC = b"flexkvFR"
VERSION = 1
COMPRESSION = {"window_log": 22, "enable_ldm": True, "ldm_min_match": 64, "ldm_hash_rate_log": 5}
"""Keys do not compress, but chains of them come again, far apart: long matches are looked for in the whole piece."""
PIECE_BYTES_MAX = 1 << 28
"""A piece that says it is longer is not unpacked."""
_HEAD = struct.Struct("<8sIQ16s")


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """Some events in a row, and the marks between them."""

    first: int
    """The number of its first event; the first of a life is 1."""
    first_ns: int
    events: int
    records: int
    """Events and marks."""
    frame: bytes
    """zstd."""


class Recording(msgspec.Struct, frozen=True):
    """What a dump holds. `complete`: all events since the planner was made are in it, so it can be replayed."""

    program: str
    taken_at: str
    """ISO 8601, UTC."""
    why: str
    """What it was taken for: `asked`, `signal` or `bug`."""
    failure: str
    """The bug, as `replay` words it; empty without one."""
    config: dict[str, Any]
    """The planner's."""
    shapes: Shapes
    events: int
    """Handled by the planner until the dump."""
    complete: bool
    pieces: list[Piece]
    mark: bytes
    """See `digest.witness_of`: after the last event."""
    digest: str
    """See `digest.digest_of`: after the last event; empty where the state was too large for it."""


def compress(records: bytes | bytearray) -> bytes:
    """A piece's records as they lie in a file."""
    import zstandard  # noqa: PLC0415 - not before the first piece: workers wait for a daemon that starts

    parameters = zstandard.ZstdCompressionParameters.from_level(1, **COMPRESSION)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(records)


def decompress(piece: Piece) -> bytes:
    """A piece's records. Raises BAD_RECORDING."""
    import zstandard  # noqa: PLC0415 - as above

    try:
        if zstandard.frame_content_size(piece.frame) not in range(PIECE_BYTES_MAX + 1):
            raise bad_recording("a piece of the recording says it is longer than any can be: take another dump")
        return zstandard.ZstdDecompressor().decompress(piece.frame)
    except zstandard.ZstdError as error:
        raise bad_recording(f"a piece of the recording cannot be unpacked ({error}): take another dump") from error


def pack(recording: Recording) -> bytes:
    """The bytes of the file."""
    body = msgspec.msgpack.encode(recording)
    return _HEAD.pack(MAGIC, VERSION, len(body), xxh3_128_digest(body)) + body


def unpack(data: bytes) -> Recording:
    """What a file holds. Raises BAD_RECORDING."""
    if len(data) < _HEAD.size or not data.startswith(MAGIC):
        raise bad_recording("the file is no recording of flexkvd: name one that `flexkv record` or the daemon wrote")
    _, version, length, checksum = _HEAD.unpack_from(data)
    if version != VERSION:
        raise bad_recording(
            f"the recording has format {version}, this version reads {VERSION}: replay it with the flexkv that wrote it"
        )
    body = memoryview(data)[_HEAD.size :]
    if len(body) != length:
        raise bad_recording(
            f"the recording has {len(body)} bytes where {length} were written: it was cut short or added to on its "
            "way, copy it again"
        )
    if xxh3_128_digest(body) != checksum:
        raise bad_recording("the recording's bytes are not those that were written: copy it again, or take another")
    try:
        return msgspec.msgpack.decode(body, type=Recording)
    except msgspec.MsgspecError as error:
        raise bad_recording(f"the recording was not written as this version does ({error}): use that one") from error
