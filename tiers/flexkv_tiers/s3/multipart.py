"""Uploads in parts: large records go up over several connections, and what nobody ends is given up.

Owns the order of the requests; the byte worker does each of them. Called by the store.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from flexkv_tiers.base import TierFault
from flexkv_tiers.s3.bucket import Bucket
from flexkv_tiers.s3.messages import BeginUpload, Begun, EndUpload, PartStored, Put, PutPart, Sweep, Swept

ABANDONED_S = 3600.0
"""An upload begun so long ago is nobody's any more: no move may take so long."""
SWEEP_PAUSE_S = 3600.0
SWEEP_DELAY_S = 60.0
"""Nothing hurries, and a daemon that starts has better to do."""
PARTS_MAX = 10_000
"""S3's own limit."""


async def put_in_parts(bucket: Bucket, put: Put, record_bytes: int, part_bytes: int) -> None:
    """What `put` says, in parts side by side. Raises TierFault; nothing is left of it then.

    It returns, or raises, only when no part uses its frames any more.
    """
    starts = range(0, record_bytes, part_bytes)
    assert len(starts) <= PARTS_MAX
    begun = await bucket.ask(lambda: BeginUpload(put.name))
    assert isinstance(begun, Begun)
    try:
        parts = [
            PutPart(put.name, begun.upload, number, put.header, put.spans, start, min(start + part_bytes, record_bytes))
            for number, start in enumerate(starts, 1)
        ]
        etags = await _put_parts(bucket, parts)
        await bucket.ask(lambda: EndUpload(put.name, begun.upload, etags))
    except BaseException:
        with suppress(TierFault):  # the sweep finds it
            await bucket.ask(lambda: EndUpload(put.name, begun.upload, []))
        raise


async def sweep_for_ever(bucket: Bucket) -> None:
    """Give up what daemons that died have begun, soon and every hour; the number stands in `bucket.counts`."""
    await asyncio.sleep(SWEEP_DELAY_S)
    while True:
        with suppress(TierFault):
            swept = await bucket.ask(lambda: Sweep(ABANDONED_S))
            assert isinstance(swept, Swept)
            bucket.counts["uploads_swept"] += swept.count
        await asyncio.sleep(SWEEP_PAUSE_S)


async def _put_parts(bucket: Bucket, parts: list[PutPart]) -> list[str]:
    async def put_part(part: PutPart) -> str:
        stored = await bucket.ask(lambda: part)
        assert isinstance(stored, PartStored)
        return stored.etag

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(put_part(part)) for part in parts]
    except* TierFault as faults:
        fault = faults.exceptions[0]
    else:
        return [task.result() for task in tasks]
    assert isinstance(fault, TierFault)
    raise fault
