"""Collects small records that are written at the same time, so that they go out as one object.

Owns who waits for which upload and for how long a record lingers; the store says what an upload is. A
record waits for its siblings a few milliseconds, and longer only while as many uploads run as the byte
workers have threads: then waiting costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from flexkv_py.core.messages import BlockName
from flexkv_py.keys import NamespaceDigest
from flexkv_tiers.background import Background, tell_bug
from flexkv_tiers.s3.messages import Span
from flexkv_tiers.s3.names import PACK_RECORDS_MAX

LINGER_S = 0.003
RECORD_BYTES_MAX = 4 << 20
"""A record this large is an object of its own: it gains nothing by company."""

_OWNER = "the S3 tier"

Directory = tuple[NamespaceDigest, int]
"""Namespace and shard: what one pack holds records of."""


@dataclass(eq=False, slots=True)
class Record:
    """One record on its way: its header, its chunks in the arena, its length in bytes."""

    block: BlockName
    header: bytes
    spans: list[Span]
    length: int
    location: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def directory(self) -> Directory:
        return self.block.namespace, self.block.shard


class _Waiting:
    """Records of one directory that are in no upload yet."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.bytes = 0
        self.timer: asyncio.TimerHandle | None = None  # None: they have lingered long enough


class Packer:
    """`upload` stores one or more records of one directory and returns their locations, or raises for all."""

    def __init__(
        self, upload: Callable[[Sequence[Record]], Awaitable[Sequence[int]]], pack_bytes: int, uploads_max: int
    ) -> None:
        self._upload = upload
        self._pack_bytes = pack_bytes
        self._uploads_max = uploads_max
        self._waiting: dict[Directory, _Waiting] = {}
        self._uploads = Background(_OWNER)

    async def write(self, record: Record) -> int:
        """Store the record, alone or in company; its location. Raises TierFault.

        A cancelled write ends when its frames are free: at once while it lingers, else with its upload,
        whose other records are not to suffer. `record.location` then says what became of it.
        """
        self._add(record)
        try:
            return await asyncio.shield(record.location)
        except asyncio.CancelledError:
            if not self._withdraw(record):
                await _outlive(record.location)
            raise

    async def settled(self) -> None:
        """Wait until nothing is on its way; what still lingers goes out first."""
        while self._waiting or self._uploads:
            for directory in list(self._waiting):
                self._start(directory)
            await self._uploads.settled()

    def _add(self, record: Record) -> None:
        waiting = self._waiting.get(record.directory)
        if waiting is None:
            waiting = self._waiting[record.directory] = _Waiting()
            loop = asyncio.get_running_loop()
            waiting.timer = loop.call_later(LINGER_S, self._lingered, record.directory)
        elif waiting.bytes + record.length > self._pack_bytes:
            self._start(record.directory)
            self._add(record)
            return
        waiting.records.append(record)
        waiting.bytes += record.length
        if len(waiting.records) == PACK_RECORDS_MAX:
            self._start(record.directory)

    def _withdraw(self, record: Record) -> bool:
        waiting = self._waiting.get(record.directory)
        if waiting is None or record not in waiting.records:
            return False
        waiting.records.remove(record)
        waiting.bytes -= record.length
        return True

    def _lingered(self, directory: Directory) -> None:
        self._waiting[directory].timer = None
        self._start_due()

    def _start_due(self) -> None:
        due = [directory for directory, waiting in self._waiting.items() if waiting.timer is None]
        for directory in due[: max(0, self._uploads_max - len(self._uploads))]:
            self._start(directory)

    def _start(self, directory: Directory) -> None:
        waiting = self._waiting.pop(directory)
        if waiting.timer is not None:
            waiting.timer.cancel()
        if waiting.records:
            self._uploads.spawn(self._run(waiting.records)).add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._start_due()

    async def _run(self, records: list[Record]) -> None:
        try:
            locations = await self._upload(records)
        except Exception as error:  # whatever it is, every writer is told
            tell_bug(_OWNER, error)
            for record in records:
                record.location.set_exception(error)
                record.location.exception()  # a writer that was cancelled never looks at it
        else:
            for record, location in zip(records, locations, strict=True):
                record.location.set_result(location)


async def _outlive(ended: asyncio.Future[int]) -> None:
    """Wait to the end, however often the waiting task is cancelled."""
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            continue
