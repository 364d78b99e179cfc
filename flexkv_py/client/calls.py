"""What a client's connections have in common: calls on their way, names that die with a connection, back-off.

No I/O here but closing descriptors. `client.session` ends calls; both links send them and wait for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import Failed, Message, RegisterMemory

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 2.0
"""Pause after the first failed attempt to connect, and after many."""

PASSING = frozenset({ErrorCode.DAEMON_LOST, ErrorCode.DEADLINE_EXCEEDED, ErrorCode.DRAINING, ErrorCode.NOT_READY})
"""Failures to connect that time may cure. Within the back-off they read as DAEMON_LOST; a refusal keeps its code."""

Reply = TypeVar("Reply", bound=Message)


@dataclass(slots=True, eq=False)
class Call(Generic[Reply]):
    """One request on its way: the frame to send, and how it ended.

    `descriptors` came beside the reply; they are the caller's.
    """

    id: int
    expect: type[Reply]
    frame: bytearray
    sent: bool = False
    """Some of the frame is out."""
    ended: bool = False
    descriptors: list[int] = field(default_factory=list)
    _reply: Reply | None = None
    _failure: FlexKVError | None = None

    @property
    def is_void(self) -> bool:
        """The daemon is not at it and never will be: it has refused it, or never heard of it."""
        return self._failure is not None or not (self.sent or self.ended)

    def result(self) -> Reply:
        """The reply, or the coded error that answered instead."""
        assert self.ended
        if self._reply is not None:
            return self._reply
        assert self._failure is not None
        # one loss fails many calls: each raises an error of its own, with its own traceback
        raise FlexKVError(self._failure.code, self._failure.message, retry_after_s=self._failure.retry_after_s)

    def succeed(self, reply: Reply) -> None:
        assert not self.ended
        self._reply, self.ended = reply, True

    def fail(self, failure: FlexKVError) -> None:
        assert not self.ended
        self._failure, self.ended = failure, True


@dataclass(slots=True, eq=False)
class Handle:
    """A daemon's name for a ticket or lease, and the connection (`life`) it belongs to."""

    id: int
    life: int


@dataclass(slots=True, eq=False)
class Registration:
    """Memory of this worker; unlike tickets it outlives a connection, by being registered again.

    `descriptors` travel with `request`: this client's own duplicate of the memfd, or of the descriptors of a device's
    memory, none where that goes by handles. `handle` names it in the present life.
    """

    descriptors: list[int]
    request: RegisterMemory
    handle: Handle


@dataclass(slots=True)
class Backoff:
    """When the next connection may be tried. Doubles with each failure, ends with a success."""

    wait_s: float = 0.0
    retry_at_s: float = 0.0
    code: ErrorCode = ErrorCode.DAEMON_LOST
    why: str = ""

    def check(self, now_s: float) -> None:
        """Raise what the last attempt met while it is too early for the next one."""
        if now_s < self.retry_at_s:
            raise FlexKVError(
                self.code,
                f"the next connection is tried in {self.retry_at_s - now_s:.2f} s; the last one failed: {self.why}",
            )

    def failed(self, now_s: float, error: FlexKVError) -> None:
        self.wait_s = min(BACKOFF_S_MAX, max(BACKOFF_S_MIN, 2 * self.wait_s))
        self.retry_at_s, self.why = now_s + self.wait_s, error.message
        self.code = ErrorCode.DAEMON_LOST if error.code in PASSING else error.code

    def succeeded(self) -> None:
        self.wait_s = self.retry_at_s = 0.0


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors that nobody will use."""
    for descriptor in descriptors:
        os.close(descriptor)


def lost_meanwhile(parting: FlexKVError | None) -> FlexKVError:
    """The error of a call that met a connection between its end and the next one; `parting`: why it was ended."""
    why = f" ({parting.message})" if parting is not None else ""
    return FlexKVError(ErrorCode.DAEMON_LOST, f"the daemon was lost just now{why}: call again to connect anew")


def still_connecting() -> FlexKVError:
    """The error of a call whose time ran out while another was connecting: nothing of it was sent."""
    return FlexKVError(
        ErrorCode.DAEMON_LOST,
        "the daemon is lost and another call was still connecting anew: look whether it runs, or hangs",
    )


def error_of(failed: Failed) -> FlexKVError:
    """The error a reply carries. A code this client does not know reads as INTERNAL."""
    try:
        code = ErrorCode(failed.code)
    except ValueError:
        code = ErrorCode.INTERNAL
    retry_after_s = failed.retry_after_ms / 1000 if failed.retry_after_ms > 0 else None
    return FlexKVError(code, failed.message, retry_after_s=retry_after_s)
