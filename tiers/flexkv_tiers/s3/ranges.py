"""Reads of large records over several connections: one server's connection is slower than the network.

Owns which chunks make a range; the byte worker reads each range as a record's later chunks are always
read, judged by the header. Called by the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from flexkv_tiers.background import tell_bug
from flexkv_tiers.s3.bucket import Bucket
from flexkv_tiers.s3.messages import Get, Landed

RANGE_BYTES_MIN = 16 << 20
"""Below that a second connection gains less than its own beginning costs."""
RANGES_MAX = 4


def cut_ranges(lengths: Sequence[int], wanted: Sequence[bool]) -> list[tuple[int, int]]:
    """Runs of wanted chunks (first, end). Of a whole record they are of about equal size, RANGE_BYTES_MIN or more."""
    if not all(wanted):
        return _runs(wanted)
    count = max(1, min(RANGES_MAX, sum(lengths) // RANGE_BYTES_MIN))
    share, first, held = sum(lengths) / count, 0, 0
    ranges: list[tuple[int, int]] = []
    for end, length in enumerate(lengths, 1):
        held += length
        if held >= share and len(ranges) < count - 1:
            ranges.append((first, end))
            first, held = end, 0
    if first < len(lengths):
        ranges.append((first, len(lengths)))
    return ranges


def _runs(wanted: Sequence[bool]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in [number for number, is_wanted in enumerate(wanted) if is_wanted]:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


async def read_ranges(
    bucket: Bucket, ask: Callable[[int, int], Get], ranges: Sequence[tuple[int, int]]
) -> AsyncGenerator[Landed, None]:
    """The chunks of all ranges in their order, each as soon as those before it have landed.

    `ask(first, end)` asks for a run of chunks. Raises TierFault. When it ends, however it ends, no range
    uses its frames any more.
    """
    if len(ranges) == 1:
        async with aclosing(_read_range(bucket, ask, *ranges[0])) as only:
            async for landed in only:
                yield landed
        return
    queues: list[asyncio.Queue[Landed | Exception]] = [asyncio.Queue() for _ in ranges]  # bounded by their chunks

    async def fetch(queue: asyncio.Queue[Landed | Exception], first: int, end: int) -> None:
        try:
            async with aclosing(_read_range(bucket, ask, first, end)) as some:
                async for landed in some:
                    queue.put_nowait(landed)
        except Exception as error:  # whatever it is, whoever reads is told in the right place
            tell_bug("the S3 tier", error)
            queue.put_nowait(error)

    tasks = [asyncio.create_task(fetch(queue, *each)) for queue, each in zip(queues, ranges, strict=True)]
    try:
        for queue, (first, end) in zip(queues, ranges, strict=True):
            for _ in range(first, end):
                came = await queue.get()
                if isinstance(came, Exception):
                    raise came
                yield came
    finally:
        for task in tasks:
            task.cancel()
        await _all_ended(tasks)


async def _read_range(
    bucket: Bucket, ask: Callable[[int, int], Get], first: int, end: int
) -> AsyncGenerator[Landed, None]:
    landed = first

    def rest() -> Get:  # a retry goes on where the attempt before ended: landed chunks are already in use
        return ask(landed, end)

    async with aclosing(bucket.replies(rest)) as replies:
        async for reply in replies:
            assert isinstance(reply, Landed)
            assert reply.chunk == landed
            landed += 1
            yield reply


async def _all_ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait to the end, whoever cancels the waiter meanwhile; then pass the cancellation on."""
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
