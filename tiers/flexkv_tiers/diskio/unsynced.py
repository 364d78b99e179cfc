"""What a disk may have forgotten after a power cut: every 4 KiB written since its last sync, in all its versions.

Owns the versions and the choice among them; `faulty` tells it what is written and synced. Between two
syncs a disk may keep or drop each page on its own, in any order, so a write may be torn anywhere.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.diskio.files import DiskFile


@dataclass(slots=True, eq=False)
class NotedWrite:
    """One write: the pages it brought, by number. `ended` when the engine was done with it."""

    pages: dict[int, bytes]
    ended: bool = False


class UnsyncedWrites:
    """Writes that no sync has covered yet, by file."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._writes: defaultdict[Path, list[NotedWrite]] = defaultdict(list)  # in order of their begin
        self._durable: defaultdict[Path, dict[int, bytes]] = defaultdict(dict)
        """What the last sync left in each page that an unsynced write touches."""

    def note(self, file: DiskFile, offset: int, data: bytes) -> NotedWrite:
        """Before a write begins; blocks, because it reads what lies there. Raises OSError."""
        first = offset // ALIGN_BYTES
        pages = {first + at // ALIGN_BYTES: data[at : at + ALIGN_BYTES] for at in range(0, len(data), ALIGN_BYTES)}
        write = NotedWrite(pages)
        with self._lock, open(f"/proc/self/fd/{file.fd}", "rb") as buffered:  # also when it was deleted underneath
            durable = self._durable[file.path]
            for page in pages:
                if page not in durable:
                    there = os.pread(buffered.fileno(), ALIGN_BYTES, page * ALIGN_BYTES)
                    durable[page] = there.ljust(ALIGN_BYTES, b"\0")
            self._writes[file.path].append(write)
        return write

    def ended(self, path: Path) -> list[NotedWrite]:
        """The writes that a sync which begins now will cover."""
        return [write for write in self._writes[path] if write.ended]

    def cover(self, path: Path, covered: list[NotedWrite]) -> None:
        """A sync has ended that covers these."""
        with self._lock:
            left = [write for write in self._writes[path] if write not in covered]
            durable = self._durable[path]
            for write in covered:
                durable.update(write.pages)
            touched = {page for write in left for page in write.pages}
            self._durable[path] = {page: content for page, content in durable.items() if page in touched}
            self._writes[path] = left

    def drop(self, path: Path) -> None:
        """The file is a new one."""
        with self._lock:
            self._writes.pop(path, None)
            self._durable.pop(path, None)

    def lose(self, chance: random.Random, kept: float) -> None:
        """Write into each unsynced page one of its versions: with probability `kept` one of the new ones."""
        for path, durable in self._durable.items():
            if not path.exists():
                continue
            with path.open("r+b", buffering=0) as file:
                for page, content in sorted(durable.items()):
                    versions = [write.pages[page] for write in self._writes[path] if page in write.pages]
                    survivor = chance.choice(versions) if chance.random() < kept else content
                    os.pwrite(file.fileno(), survivor, page * ALIGN_BYTES)
                os.fsync(file.fileno())
