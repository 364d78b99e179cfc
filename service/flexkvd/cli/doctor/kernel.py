"""Checks of the kernel and its limits: what the arena, the disk engine and the sockets ask of them."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator

from flexkv_tiers.diskio.ring import Ring
from flexkv_tiers.memory.memfd import sealed_memfd
from flexkvd import file_limit
from flexkvd.cli import words
from flexkvd.cli.doctor.finding import Finding, Subject, failed, ok, skipped, warning

MIB = 1 << 20
GIB = 1 << 30
BESIDE_ARENA_BYTES = GIB
"""What a daemon needs beyond its arena before its index grows: Python, byte workers, buffers."""
CGROUP_DEPTH_MAX = 32
SHM = "/dev/shm"  # noqa: S108 - looked at, not written to
SHM_BYTES_LOW = 64 * MIB
"""What container engines give by default."""

KERNELS = (
    (5, 3, "processes of workers cannot be watched, so the row path is refused"),
    (5, 14, "the arena is populated page by page as it is first used, instead of at start"),
    (6, 1, "io_uring is not used: more CPU for the same disk"),
    (6, 5, "workers of another process namespace cannot use the row path"),
)
"""Versions below which something is missing, and what."""


def kernel(subject: Subject) -> Iterator[Finding]:
    """The kernel's version."""
    release = subject.read("proc/sys/kernel/osrelease") or os.uname().release
    numbers = re.match(r"(\d+)\.(\d+)", release)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    missing = [(need, what) for *need, what in KERNELS if version < tuple(need)]
    if not missing:
        yield ok("kernel", f"Linux {release}")
        return
    whole = "; ".join(f"before {major}.{minor} {what}" for (major, minor), what in missing)
    yield warning("kernel", f"Linux {release}: {whole}", f"run Linux {KERNELS[-1][0]}.{KERNELS[-1][1]} or later")


def io_uring(subject: Subject) -> Iterator[Finding]:
    """Whether a ring can be made here, tried out."""
    table = subject.config.ssd
    if table is None or table.io not in ("auto", "io_uring"):
        yield skipped("io_uring", "no [ssd]" if table is None else f'[ssd] io = "{table.io}" does without')
        return
    try:
        Ring(1, 1).close()
    except OSError as error:
        disabled = subject.read("proc/sys/kernel/io_uring_disabled")
        cure = (
            "sysctl kernel.io_uring_disabled=0"
            if disabled not in (None, "0")
            else "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile"
        )
        if table.io == "io_uring":
            yield failed("io_uring", f"{error.strerror}", f'{cure}; or set [ssd] io = "auto"')
        else:
            yield warning("io_uring", f"{error.strerror}; threads are used, at about 1.5 times the CPU", cure)
    else:
        yield ok("io_uring", "works")


def huge_pages(subject: Subject) -> Iterator[Finding]:
    """Whether shared memory may get huge pages."""
    if not subject.config.dram.huge_pages:
        yield skipped("huge pages", "[dram] huge_pages = false")
        return
    path = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
    words_of = subject.read(path)
    chosen = re.search(r"\[(\w+)\]", words_of or "")
    if chosen and chosen[1] in ("always", "within_size", "advise", "force"):
        yield ok("huge pages", f"shared memory gets them ({chosen[1]})")
        return
    what = f"shared memory gets none ({chosen[1]})" if chosen else "this kernel has none for shared memory"
    yield warning("huge pages", f"{what}: the arena works, with more TLB misses", f"echo advise > /{path}")


def memory(subject: Subject) -> Iterator[Finding]:
    """Whether the arena fits the machine, and the control group the daemon lives in."""
    wanted = subject.config.dram.bytes
    found = re.search(r"^MemTotal:\s+(\d+) kB", subject.read("proc/meminfo") or "", re.MULTILINE)
    total = int(found[1]) * 1024 if found else 0
    text = f"[dram] bytes {words.size(wanted)} of {words.size(total)}"
    if wanted > total:
        yield failed("memory", text, "lower [dram] bytes, and leave room for the workers")
    elif wanted + BESIDE_ARENA_BYTES > total:
        yield warning("memory", f"{text}: next to nothing is left for workers", "lower [dram] bytes")
    else:
        yield ok("memory", text)
    limit = cgroup_limit(subject)
    if limit is None:
        yield ok("memory limit", "its control group has none")
        return
    text = f"the control group may use {words.size(limit)}, [dram] bytes is {words.size(wanted)}"
    cure = "raise MemoryMax= of the unit, or the container's memory limit; or lower [dram] bytes"
    if wanted > limit:
        yield failed("memory limit", f"{text}: the kernel would kill the daemon", cure)
    elif wanted + BESIDE_ARENA_BYTES > limit:
        yield warning("memory limit", f"{text}: less than {words.size(BESIDE_ARENA_BYTES)} for all else", cure)
    else:
        yield ok("memory limit", text)


def cgroup_limit(subject: Subject) -> int | None:
    """The least limit of the daemon's control group and those above it, in bytes; None: unlimited."""
    groups = subject.read(f"proc/{subject.daemon_pid or 'self'}/cgroup") or ""
    limits = []
    for line in groups.splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base, name = (
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes") if controllers else ("sys/fs/cgroup", "memory.max")
        )
        parts = [part for part in group.split("/") if part][:CGROUP_DEPTH_MAX]
        for depth in range(len(parts) + 1):
            text = subject.read("/".join([base, *parts[:depth], name])) or ""
            limits += [int(text)] if text.isdecimal() and int(text) < 1 << 60 else []
    return min(limits, default=None)


def locked_memory(subject: Subject) -> Iterator[Finding]:
    """RLIMIT_MEMLOCK: pinning for a GPU, and rings of old kernels, count against it."""
    limit = _limit(subject, "Max locked memory", resource.RLIMIT_MEMLOCK)
    wanted = subject.config.dram.bytes
    if limit is None or limit >= wanted:
        yield ok("memlock", "unlimited" if limit is None else words.size(limit))
        return
    text = f"{words.size(limit)} may be locked{_of_whom(subject)}, the arena has {words.size(wanted)}"
    if not _has_gpu(subject):
        yield ok("memlock", f"{text}: without a GPU nothing is pinned")
        return
    cure = "LimitMEMLOCK=infinity in the unit, --ulimit memlock=-1 for a container, or ulimit -l unlimited"
    yield warning("memlock", f"{text}: a driver may refuse to pin the arena", cure)


def open_files(subject: Subject) -> Iterator[Finding]:
    """RLIMIT_NOFILE beside what the configuration opens."""
    needed = file_limit.files_needed(subject.config)
    limit = _limit(subject, "Max open files", resource.RLIMIT_NOFILE)
    text = f"{'unlimited' if limit is None else limit}{_of_whom(subject)}; {needed} when all is full"
    cure = "LimitNOFILE= in the unit, --ulimit nofile= for a container, or ulimit -n; or larger segment_bytes"
    if limit is None or limit >= needed.all:
        yield ok("open files", text)
    elif limit >= needed.least:
        yield warning("open files", f"{text}: clients will be turned away", f"{cure}, or lower [limits] sessions_max")
    else:
        yield failed("open files", f"{text}: the tiers alone need {needed.least}", cure)


def shared_memory(subject: Subject) -> Iterator[Finding]:
    """memfd, which the arena is made of; and /dev/shm, which the engines beside it use."""
    try:
        os.close(sealed_memfd("flexkv-doctor", 4096))
    except OSError as error:
        cure = "allow memfd_create in the container's seccomp profile, and mount no noexec-only policy on memfd"
        yield failed("memfd", f"cannot be made ({error.strerror}): there would be no arena", cure)
    else:
        yield ok("memfd", "works; sealed memory can be handed to workers")
    place = subject.root / SHM.lstrip("/")
    try:
        disk = os.statvfs(place)
    except OSError:
        yield skipped(SHM, "not there; flexkvd uses none, inference engines may")
        return
    room = disk.f_blocks * disk.f_frsize
    if room <= SHM_BYTES_LOW:
        why = f"{words.size(room)}: enough for flexkvd, which uses none, too little for most inference engines"
        yield warning(SHM, why, "--shm-size=8g or --ipc=host for the container of the engine")
    else:
        yield ok(SHM, words.size(room))


def _limit(subject: Subject, name: str, number: int) -> int | None:
    """Soft for locked memory, hard for files, which the daemon raises to; None: unlimited."""
    index = 1 if number == resource.RLIMIT_NOFILE else 0
    if subject.daemon_pid is not None:
        text = subject.read(f"proc/{subject.daemon_pid}/limits") or ""
        found = re.search(rf"^{name}\s+(\w+)\s+(\w+)", text, re.MULTILINE)
        if found:
            return None if found[index + 1] == "unlimited" else int(found[index + 1])
    limit = resource.getrlimit(number)[index]
    return None if limit == resource.RLIM_INFINITY else limit


def _of_whom(subject: Subject) -> str:
    return "" if subject.daemon_pid is None else f" by the running daemon (process {subject.daemon_pid})"


def _has_gpu(subject: Subject) -> bool:
    return (subject.root / "dev/nvidiactl").exists()
