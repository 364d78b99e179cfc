"""What this process holds open, by identity: tests ask what is new, since older things may go at any time.

A count is no witness: garbage of an earlier test is closed whenever the collector runs.
"""

import os
import threading
from pathlib import Path

OpenFile = tuple[int, int, int]


def open_files(*kinds: str) -> set[OpenFile]:
    """(number, device, inode) of this process's descriptors, or of those whose target begins with one of `kinds`."""
    found = set()
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            target, status = os.readlink(f"/proc/self/fd/{number}"), os.fstat(number)
        except OSError:  # the listing's own descriptor
            continue
        if not kinds or target.startswith(kinds):
            found.add((number, status.st_dev, status.st_ino))
    return found


def mapped_memfds() -> set[str]:
    """Lines of the memory map that belong to memfds."""
    return {line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in line}


def threads() -> set[threading.Thread]:
    """The living threads of this process."""
    return set(threading.enumerate())
