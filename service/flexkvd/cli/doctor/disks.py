"""Checks of the SSD tier's directories: rights, direct I/O and its alignment, room, whose they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from flexkv_py.errors import FlexKVError
from flexkv_tiers.diskio.choice import PROBE_NAME
from flexkv_tiers.diskio.files import IoPath, choose_io_path
from flexkv_tiers.ssd import directory as directories
from flexkv_tiers.ssd import inspection
from flexkvd.cli import words
from flexkvd.cli.doctor.finding import Finding, Subject, failed, ok, skipped, warning
from flexkvd.stores import ssd_wanted

RECORD_ALIGN_BYTES = 4096


def disks(subject: Subject) -> Iterator[Finding]:
    """Each directory of [ssd]."""
    table = subject.config.ssd
    if table is None:
        yield skipped("disk", "no [ssd]")
        return
    wanted = ssd_wanted(table)
    try:
        inspection.check(wanted)
    except FlexKVError as error:
        yield failed("disk", str(error), "see the code in docs/errors.md; the sentence names what to change")
    for path in wanted.directories:
        yield from _rights(path, direct=table.direct_io)
        yield from _block_size(subject, path)
        yield from _room(path, wanted)
        yield from _holder(subject, path)


def _rights(path: Path, *, direct: bool) -> Iterator[Finding]:
    """A file is made in the directory, or in the one it will be made in, and removed."""
    name = f"disk {path}"
    try:
        place = directories.existing(path)
        choice = choose_io_path(place / f"{PROBE_NAME}-doctor", direct)
    except OSError as error:
        who = f"user {os.geteuid()}"
        cure = f"give {path} to the user that runs the daemon (chown, chmod u+rwx), on a disk mounted read-write"
        yield failed(name, f"{who} cannot write there ({error.strerror})", cure)
        return
    if choice.path is IoPath.DIRECT or not direct:
        yield ok(name, f"writable; {choice.reason}")
    else:
        cure = "use a file system on a local disk (ext4, xfs); or set [ssd] direct_io = false to say it is meant"
        yield warning(name, f"writable; {choice.reason}: more CPU, and memory of the page cache", cure)


def _block_size(subject: Subject, path: Path) -> Iterator[Finding]:
    """The alignment that the device wants of direct I/O."""
    name = f"alignment {path}"
    try:
        device = directories.existing(path).stat().st_dev
    except OSError:
        return
    place = f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    queues = (f"{place}/queue", f"{place}/../queue")
    text = next((found for queue in queues if (found := subject.read(f"{queue}/logical_block_size"))), None)
    if text is None:
        yield skipped(name, "the file system lies on no block device of its own; the trial write above counts")
        return
    if int(text) > RECORD_ALIGN_BYTES:
        cure = "name a directory on a device of 512 or 4096 byte blocks"
        yield failed(name, f"the device wants {text} bytes, records are aligned to {RECORD_ALIGN_BYTES}", cure)
        return
    rotates = next((found for queue in queues if (found := subject.read(f"{queue}/rotational"))), "0")
    if rotates == "1":
        why = f"{text} bytes; the kernel takes the device for a spinning disk"
        yield warning(name, why, "use flash; a virtual disk that is flash may be told by echo 0 > queue/rotational")
    else:
        yield ok(name, f"the device wants {text} bytes, records are aligned to {RECORD_ALIGN_BYTES}")


def _room(path: Path, wanted: inspection.Wanted) -> Iterator[Finding]:
    name = f"room {path}"
    try:
        room = inspection.room_in(path, wanted.reserve_bytes)
    except FlexKVError as error:
        yield failed(name, str(error), "name a directory that can be read")
        return
    text = f"{words.size(room.usable_bytes)} usable of {words.size(room.file_system_bytes)}, "
    text += f"{words.size(wanted.share_bytes)} wanted"
    if room.file_system_bytes and room.usable_bytes < wanted.share_bytes:
        yield warning(name, f"{text}: the tier will run full before that", "free space there, or lower [ssd] bytes")
    else:
        yield ok(name, text)


def _holder(subject: Subject, path: Path) -> Iterator[Finding]:
    """A daemon may hold the directory; another one than that of this configuration may not."""
    name = f"lock {path}"
    try:
        who = directories.holder(path)
    except FlexKVError as error:
        yield failed(name, str(error), "see the code in docs/errors.md")
        return
    if who is None:
        yield ok(name, "nobody uses it now")
    elif subject.daemon_pid is not None:
        yield ok(name, "in use by the running daemon")
    else:
        yield failed(name, who, "stop what uses it, or give each daemon a directory of its own")
