"""Registration of a worker's memory: the descriptor or the handles it sent, checked and mapped.

Owns what is believed of a registration, and when it is answered: a worker that lost its connection and
registers the same memory again must not be told so while copies of its last session still run there.
The mapping itself is `flexkv_tiers.memory`'s; that of a device is opened by `devices`, off the loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import Registered, RegisterMemory
from flexkv_tiers.memory import HostMemory, WorkerMemory
from flexkv_tiers.memory.cuda import CudaMemory
from flexkvd.config import LimitsTable
from flexkvd.devices import Devices, descriptor_count
from flexkvd.memories import RegisteredMemory
from flexkvd.sessions import Session

Refuse = Callable[[Session, int, FlexKVError], None]
"""Answers a request that waited with a coded error."""


class Registry:
    """Registers memories of all sessions. Those of one session get their numbers in the order of their messages."""

    def __init__(self, limits: LimitsTable, sessions: Mapping[int, Session], devices: Devices) -> None:
        self.refuse: Refuse = lambda _session, _request, _error: None  # the server's
        self._limits = limits
        self._sessions = sessions
        self._devices = devices

    def register(self, session: Session, message: RegisterMemory) -> Registered | None:
        """Map the memory that came with the message. None when the reply comes later.

        That is so for memory of a device, which takes a while to open, and while copies of ended sessions run in it.
        Raises FlexKVError; the descriptors are closed in any case.
        """
        _close_hung_up(session, self._sessions.values())
        with ExitStack() as descriptors:
            taken = _take_descriptors(session, message, descriptors)
            _check(session, message, self._limits)
            if message.device:
                self._open(session, message, taken, descriptors)
                return None
            mapping = HostMemory(taken[0], message, session.geometry)
        return self._keep(session, message.id, session.next_memory(), mapping)

    def _open(self, session: Session, message: RegisterMemory, taken: Sequence[int], descriptors: ExitStack) -> None:
        self._devices.check()
        session.begin_waiting()
        session.opening += 1
        number, kept = session.next_memory(), descriptors.pop_all()

        def opened(result: CudaMemory | FlexKVError) -> None:
            kept.close()
            session.opening -= 1
            session.waiting -= 1
            if session.closed:  # its worker died meanwhile
                if not isinstance(result, FlexKVError):
                    self._devices.release(result, lambda: None)
                return
            try:
                if isinstance(result, FlexKVError):
                    raise result
                reply = self._keep(session, message.id, number, result)
            except FlexKVError as error:
                self.refuse(session, message.id, error)
            else:
                if reply is not None:
                    session.reply(reply)

        self._devices.open(message, taken, session.geometry, opened)

    def _keep(self, session: Session, request: int, number: int, mapping: WorkerMemory) -> Registered | None:
        """It is the session's from now on; None when the reply waits for copies of ended sessions."""
        busy = _still_copying(mapping, self._sessions.values())
        if busy:
            try:
                session.begin_waiting()
            except FlexKVError:
                self._devices.release(mapping, lambda: None)
                raise
        session.memories[number] = RegisteredMemory(number, mapping, self._devices.release)
        reply = Registered(request, number)
        if not busy:
            return reply
        _after_copies(busy, lambda: session.end_waiting(reply))
        return None


def _take_descriptors(session: Session, message: RegisterMemory, stack: ExitStack) -> list[int]:
    """Those that came with the message, closed by `stack`. Raises FlexKVError(BAD_MEMORY)."""
    descriptors: list[int] = []
    for _ in range(descriptor_count(message)):
        descriptor = session.connection.take_descriptor()
        if descriptor is None:
            raise FlexKVError(
                ErrorCode.BAD_MEMORY,
                f"{len(descriptors)} descriptors came with the message: send one memfd beside it by SCM_RIGHTS, or "
                "one for every device allocation without a handle",
            )
        stack.callback(os.close, descriptor)
        descriptors.append(descriptor)
    return descriptors


def _close_hung_up(session: Session, sessions: Iterable[Session]) -> None:
    """End the process's sessions that it has left, unread requests and all: none may begin a copy behind this one."""
    for each in list(sessions):
        if not each.closed and each.connection.peer.pid == session.connection.peer.pid and each.connection.hung_up():
            each.connection.close()


def _still_copying(mapping: WorkerMemory, sessions: Iterable[Session]) -> list[RegisteredMemory]:
    """Other mappings of this very memory, of sessions that are gone, in which a copy may still run."""
    return [
        memory
        for session in sessions
        if session.closed
        for memory in (*session.memories.values(), *session.leaving.values())
        if memory.mapping.file == mapping.file
    ]


def _after_copies(memories: list[RegisteredMemory], answer: Callable[[], None]) -> None:
    """Call `answer` when no copy of today touches any of these memories any more."""
    left = len(memories)

    def ended() -> None:
        nonlocal left
        left -= 1
        if not left:
            answer()

    for memory in memories:
        memory.fence(None, ended)


def _check(session: Session, message: RegisterMemory, limits: LimitsTable) -> None:
    if session.hello.role == "scheduler":
        raise FlexKVError(
            ErrorCode.UNSUPPORTED, "a scheduler has no memory: connect with role 'worker' to register one"
        )
    if len(session.memories) + len(session.leaving) + session.opening >= limits.memories_per_session_max:
        raise FlexKVError(
            ErrorCode.LIMIT_EXCEEDED,
            f"{limits.memories_per_session_max} memories are registered (memories_per_session_max): unregister one",
        )
    if message.bytes > limits.memory_bytes_max:
        raise FlexKVError(
            ErrorCode.LIMIT_EXCEEDED,
            f"a memory of {message.bytes} bytes is over memory_bytes_max = {limits.memory_bytes_max}: raise that limit",
        )
