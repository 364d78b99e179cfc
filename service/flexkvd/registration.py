"""Registration of a worker's memory: the descriptor or the handles it sent, checked and mapped.

Owns what is believed of a registration, and when it is answered: a worker that lost its connection and
registers the same memory again must not be told so while copies of its last session still run there.
The mapping itself is `flexkv_tiers.memory`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import Registered, RegisterMemory
from flexkv_tiers.memory import HostMemory, WorkerMemory
from flexkvd.config import LimitsTable
from flexkvd.devices import Devices, descriptor_count
from flexkvd.memories import RegisteredMemory
from flexkvd.sessions import Session


def register(
    session: Session, message: RegisterMemory, limits: LimitsTable, sessions: Iterable[Session], devices: Devices
) -> Registered | None:
    """Map the memory that came with the message; None when the reply waits for copies of ended sessions.

    Raises FlexKVError; the descriptors are closed in any case.
    """
    _close_hung_up(session, sessions)
    with ExitStack() as stack:
        descriptors = _take_descriptors(session, message, stack)
        _check(session, message, limits)
        mapping: WorkerMemory
        if message.device:
            mapping = devices.open(message, descriptors, session.geometry)
        else:
            mapping = HostMemory(descriptors[0], message, session.geometry)
    busy = _still_copying(mapping, sessions)
    if busy:
        try:
            session.begin_waiting()
        except FlexKVError:
            mapping.close()
            raise
    session.memories_made += 1
    number = session.memories_made
    session.memories[number] = RegisteredMemory(number, mapping)
    reply = Registered(message.id, number)
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
    if len(session.memories) + len(session.leaving) >= limits.memories_per_session_max:
        raise FlexKVError(
            ErrorCode.LIMIT_EXCEEDED,
            f"{limits.memories_per_session_max} memories are registered (memories_per_session_max): unregister one",
        )
    if message.bytes > limits.memory_bytes_max:
        raise FlexKVError(
            ErrorCode.LIMIT_EXCEEDED,
            f"a memory of {message.bytes} bytes is over memory_bytes_max = {limits.memory_bytes_max}: raise that limit",
        )
