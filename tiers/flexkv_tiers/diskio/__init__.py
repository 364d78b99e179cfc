"""Disk I/O past the page cache: one interface, three engines, and one that breaks things on purpose.

`choice` picks the engine; `base` is the interface; `uring`, `threads` and `portable` serve it;
`faulty` wraps any of them, for tests. `files` opens files, `lineup` decides who goes next.
"""

from flexkv_tiers.diskio.base import DiskFuture, DiskIo, nothing, settle
from flexkv_tiers.diskio.choice import EngineName, open_disk_io, open_disk_to_read
from flexkv_tiers.diskio.files import DiskFile, IoChoice, IoPath

__all__ = [
    "DiskFile",
    "DiskFuture",
    "DiskIo",
    "EngineName",
    "IoChoice",
    "IoPath",
    "nothing",
    "open_disk_io",
    "open_disk_to_read",
    "settle",
]
