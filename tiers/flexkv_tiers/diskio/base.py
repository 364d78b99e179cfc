"""What every engine of disk I/O promises, and how coroutines wait for a disk.

Owns `DiskIo`, the one interface, and `DiskFuture`. The SSD tier is written against this module and
`DiskFile`; which engine serves it is chosen in `choice`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from flexkv_tiers.diskio.files import DiskFile

T = TypeVar("T")


class DiskFuture(asyncio.Future[T]):
    """The end of an I/O. It cannot be cancelled, because the I/O cannot: the disk uses the frames until it ends.

    A coroutine that is cancelled while it awaits one therefore goes on waiting, and meets its
    CancelledError when the I/O is over.
    """

    def cancel(self, *_: object, **__: object) -> bool:  # whatever Future takes
        return False


async def settle(work: DiskFuture[T]) -> bool:
    """Wait until `work` has ended; True when the caller was cancelled meanwhile. The outcome stays in `work`."""
    try:
        await work
    except asyncio.CancelledError:
        return True
    except BaseException:  # whoever looks at `work` next raises it
        assert work.done()
    return False


def nothing() -> None:
    """The `then` of a read that has nothing to do with its bytes; no thread is woken for it."""


class DiskIo(Protocol):
    """Transfers between files of one directory and aligned memory, as futures of the running loop.

    Every transfer is whole or a `TierFault`: IO, FULL (writes), CORRUPT (a read met the end of the
    file). One that fails fails alone, also in the middle of a batch. Offsets and lengths are multiples
    of 4 KiB and memory begins on 4 KiB, as frames and `pages` do. What is asked for stays the
    engine's until the future ends: memory must not be used, nor the file closed, before.
    """

    name: str

    def open(self, path: Path, *, create_bytes: int = 0) -> DiskFile:
        """Open a file, or create it with `create_bytes` allocated. Blocks: call it inside `run`. Raises OSError."""
        ...

    def read(self, file: DiskFile, targets: Sequence[memoryview], offset: int, then: Callable[[], T]) -> DiskFuture[T]:
        """Fill `targets`, one after the other, from `offset` on; then run `then` off the loop and return its result.

        Reads go before everything else that waits.
        """
        ...

    def write(self, file: DiskFile, sources: Sequence[memoryview], offset: int) -> DiskFuture[None]:
        """Write `sources`, one after the other, from `offset` on. Not durable before a `sync`."""
        ...

    def sync(self, file: DiskFile) -> DiskFuture[None]:
        """Ends when every write that has ended so far is durable. One sync of the disk serves all who asked for it."""
        ...

    def run(self, job: Callable[[], T]) -> DiskFuture[T]:
        """Run a small job that blocks (open, unlink) off the loop. Whatever it raises comes out of the future."""
        ...

    def pages(self, count: int) -> AbstractContextManager[memoryview]:
        """Borrow `count` times 4 KiB of aligned memory; what it holds is left over from its last use."""
        ...

    async def stop(self) -> None:
        """Let what was asked for end, then end the engine. Open files stay the caller's."""
        ...

    def status(self) -> dict[str, object]:
        """Engine, I/O path, the reasons for both, and what is under way."""
        ...
