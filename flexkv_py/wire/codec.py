"""Bodies ↔ typed messages.

Owns the promise that a body either is a message of this protocol or raises a coded FlexKVError, and
nothing else ever. Limits on values belong to whoever acts on them; lengths of frames to `wire.framing`.
"""

from __future__ import annotations

from typing import NoReturn

import msgspec

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.framing import PREFIX_BYTES, put_prefix
from flexkv_py.wire.messages import ClientMessage, DaemonMessage

Body = bytes | bytearray | memoryview

REASON_CHARS_MAX = 300
"""A refusal quotes at most this much: it may repeat what a stranger sent."""

_encoder = msgspec.msgpack.Encoder()
_client_decoder = msgspec.msgpack.Decoder(ClientMessage)
_daemon_decoder = msgspec.msgpack.Decoder(DaemonMessage)


class _Opening(msgspec.Struct, array_like=True):
    """What every message starts with."""

    tag: int
    id: int


_opening_decoder = msgspec.msgpack.Decoder(_Opening)


def encode(message: ClientMessage | DaemonMessage) -> bytearray:
    """The whole frame of one message, ready to be sent. Raises MESSAGE_TOO_LARGE."""
    frame = bytearray(PREFIX_BYTES)
    _encoder.encode_into(message, frame, PREFIX_BYTES)
    return put_prefix(frame)


def decode_client(body: Body) -> ClientMessage:
    """What a client said. Raises BAD_MESSAGE, or BAD_GEOMETRY for a hello that declares nonsense."""
    try:
        return _client_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _refuse(error)


def decode_daemon(body: Body) -> DaemonMessage:
    """What the daemon said. Raises BAD_MESSAGE."""
    try:
        return _daemon_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _refuse(error)


def request_id(body: Body) -> int:
    """The id a refused body carries, so that its sender can be told; 0 where none can be read."""
    try:
        return max(0, _opening_decoder.decode(body).id)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0


def _refuse(error: Exception) -> NoReturn:
    raise FlexKVError(
        ErrorCode.BAD_MESSAGE,
        f"not a message of this protocol ({str(error)[:REASON_CHARS_MAX]}): a body is one msgpack array "
        "[tag, id, fields…] as flexkv_py.wire.messages lists them",
    ) from None
