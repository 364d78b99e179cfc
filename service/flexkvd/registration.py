"""Registration of a worker's memory: the descriptor it sent, checked and mapped.

Owns what is believed of a registration; the mapping itself is `flexkv_tiers.memory`'s.
"""

from __future__ import annotations

import os

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import Registered, RegisterMemory
from flexkv_tiers.memory import WorkerMemory
from flexkvd.config import LimitsTable
from flexkvd.memories import RegisteredMemory
from flexkvd.sessions import Session


def register(session: Session, message: RegisterMemory, limits: LimitsTable) -> Registered:
    """Map the memfd that came with the message. Raises FlexKVError; the descriptor is closed in any case."""
    descriptor = session.connection.take_descriptor()
    if descriptor is None:
        raise FlexKVError(
            ErrorCode.BAD_MEMORY, "no descriptor came with the message: send one memfd beside it by SCM_RIGHTS"
        )
    try:
        _check(session, message, limits)
        mapping = WorkerMemory(descriptor, message, session.geometry)
    finally:
        os.close(descriptor)
    session.memories_made += 1
    number = session.memories_made
    session.memories[number] = RegisteredMemory(number, mapping)
    return Registered(message.id, number)


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
