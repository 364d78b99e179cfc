"""Bytes of a stream ↔ message bodies: `u32 length (little endian) ‖ body`.

Owns where one body ends and the next begins, and the limit on a body's length; knows nothing of what
a body says (that is `wire.codec`). The daemon's server and both clients feed it what they receive.
"""

from __future__ import annotations

from collections.abc import Iterator

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import MESSAGE_BYTES_MAX

PREFIX_BYTES = 4
"""Length of the length."""


class FrameDecoder:
    """Cuts a byte stream into bodies, whatever pieces it arrives in.

    At most one unfinished frame is kept, so memory is bounded by `body_bytes_max`, and every byte is
    copied at most twice. After an error the stream has lost its place: drop the connection.
    """

    def __init__(self, body_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._body_bytes_max = body_bytes_max
        self._pending = bytearray()  # the start of one frame, always shorter than `_wanted`
        self._wanted = PREFIX_BYTES  # how long `_pending` must grow before it tells anything new

    @property
    def pending_bytes(self) -> int:
        """Bytes kept of an unfinished frame; not 0 at the end of a stream means it was torn."""
        return len(self._pending)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[memoryview]:
        """Yield each body that `data` completes. Iterate to the end before feeding again.

        A body is a view without a copy wherever it lies whole in `data`: decode it before `data`'s
        memory is reused. Raises MESSAGE_TOO_LARGE as soon as a prefix announces too much.
        """
        if len(self._pending) + len(data) < self._wanted:
            self._pending += data
            return
        if self._pending:
            self._pending += data
            data, self._pending = self._pending, bytearray()
        view, start, end = memoryview(data), 0, len(data)
        while end - start >= PREFIX_BYTES:
            body_start = start + PREFIX_BYTES
            body_end = body_start + self._checked(int.from_bytes(view[start:body_start], "little"))
            if body_end > end:
                break
            yield view[body_start:body_end]
            start = body_end
        self._keep(view[start:])

    def _keep(self, rest: memoryview) -> None:
        """Remember the start of an unfinished frame, and how many bytes would finish the next step."""
        assert not self._pending
        self._pending += rest
        self._wanted = PREFIX_BYTES
        if len(rest) >= PREFIX_BYTES:
            self._wanted += int.from_bytes(rest[:PREFIX_BYTES], "little")
        assert len(self._pending) < self._wanted

    def _checked(self, body_bytes: int) -> int:
        if body_bytes > self._body_bytes_max:
            raise _too_large(body_bytes, self._body_bytes_max)
        return body_bytes


def put_prefix(frame: bytearray) -> bytearray:
    """Write the length of the body that follows the first four bytes of `frame` into them."""
    body_bytes = len(frame) - PREFIX_BYTES
    if body_bytes > MESSAGE_BYTES_MAX:
        raise _too_large(body_bytes, MESSAGE_BYTES_MAX)
    frame[:PREFIX_BYTES] = body_bytes.to_bytes(PREFIX_BYTES, "little")
    return frame


def _too_large(body_bytes: int, body_bytes_max: int) -> FlexKVError:
    return FlexKVError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a message of {body_bytes} bytes is over the limit of {body_bytes_max}: send fewer keys per message, "
        "and check that both ends speak this protocol",
    )
