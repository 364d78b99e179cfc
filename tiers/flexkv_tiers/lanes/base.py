"""What every kind of copy lane promises, and the work it is given.

The daemon hands over one chunk of many blocks at a time, or several chunks of small ones, and hears of the
outcome. A lane moves bytes and decides nothing: frames are reserved and pages checked before it hears of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from flexkv_py.core.messages import Fault, Priority
from flexkv_tiers.memory.gates import Gate
from flexkv_tiers.memory.worker import PageTable, WorkerMemory


class Direction(Enum):
    """Which side is written."""

    INTO_WORKER = "into_worker"
    OUT_OF_WORKER = "out_of_worker"


@dataclass(slots=True, eq=False)
class AwaitedEvent:
    """An event of the worker's process, by its handle, shared by all tasks of a ticket.

    The first of them that is submitted opens it and has the stream wait, behind which all others are too.
    """

    handle: bytes
    awaited: bool = False
    why_not: str = ""
    """Why it cannot be opened, which fails all copies; like `awaited` written by the submitting thread alone."""


@dataclass(slots=True)
class CopyTask:
    """Some chunks of some blocks: chunk c of `keys[i]` lies in `frames[i][c]`, the block in the worker's `pages[i]`.

    `pages` comes from `memory.page_table`. Out of the worker, a frame's padding is zeroed and its
    checksum computed and set in the arena.
    """

    direction: Direction
    memory: WorkerMemory
    chunks: Sequence[int]
    keys: list[bytes]
    frames: list[tuple[int, ...]]
    pages: PageTable
    after: AwaitedEvent | None = None
    """What the copies wait for on their stream. Lanes of the host know none."""
    gates: dict[int, Gate] = field(default_factory=dict)
    """By chunk: told of this task's copies of it, and opened behind the last ones of all tasks that share them.

    A task without blocks gives them up: what is not open yet is opened as failed.
    """
    block_bytes: int = field(init=False)
    """Of all these chunks of one block."""

    def __post_init__(self) -> None:
        self.block_bytes = sum([self.memory.chunk_bytes[chunk] for chunk in self.chunks])


Copied = Callable[[list["Fault | None"]], None]
"""Called on the loop with one entry per block: None, or why its copy failed. It must not raise."""


@dataclass(slots=True, eq=False)
class Job:
    """One task in the lanes. Owned by the loop; a thread writes only the faults of its own unit."""

    task: CopyTask
    loop: asyncio.AbstractEventLoop
    units_left: int
    faults: list[Fault | None]
    copied: list[Copied]
    """Who hears of the end, in this order."""


class Lanes(Protocol):
    """Copies to and from one kind of device. Called from one event loop, whose thread also closes it."""

    def start(self, task: CopyTask, priority: Priority, copied: Copied) -> None:
        """Copy in the background, more urgent work first, and call `copied` once: at once when closed or empty.

        A task of no blocks with gates opens them, and then calls `copied`. Lanes that are closed may leave them shut.

        A chunk that has begun is copied to its end; the next one waits for anything more urgent.
        """
        ...

    async def copy(self, task: CopyTask, priority: Priority) -> list[Fault | None]:
        """`start` for who would rather wait. Cancelling the caller does not end the copy: `fence` waits for it."""
        ...

    def running(self, memory: WorkerMemory) -> int:
        """How many copies that touch this memory are queued or running."""
        ...

    async def fence(self, memory: WorkerMemory, pages: PageTable | None = None) -> None:
        """Return once no copy submitted before touches these pages (None: any page of the memory)."""
        ...

    def close(self) -> None:
        """End the lanes. Copies not yet begun end as Fault.DOWN. Idempotent."""
        ...

    def status(self) -> dict[str, object]:
        """Facts for people, and counters."""
        ...
