"""Anonymous shared memory: makes memfds that nobody can shrink, and refuses descriptors that could be.

A mapping of a file somebody else can truncate is a bomb: touching a lost page kills the process with
SIGBUS, in whatever thread does it. So every descriptor from outside passes `check_sealed` before it
is mapped. A worker's own allocator calls `sealed_memfd`; so does the arena.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.open_files import is_out_of_files, out_of_files

_OWNER_ONLY = 0o600


def sealed_memfd(name: str, length: int, *, huge_pages: bool = False, grow: bool = False) -> int:
    """A new memfd of at least `length` bytes that can never shrink; the caller owns the descriptor.

    Mode 0600: another uid that is handed a read-only descriptor cannot reopen it writable. With
    `huge_pages` the length is rounded up to whole huge pages; whether they are granted shows only
    when it is mapped. Raises OSError.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | (os.MFD_HUGETLB if huge_pages else 0))
    try:
        page = page_bytes(descriptor)
        os.ftruncate(descriptor, -(-length // page) * page)
        os.fchmod(descriptor, _OWNER_ONLY)
        seals = fcntl.F_SEAL_SHRINK | (0 if grow else fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def page_bytes(descriptor: int) -> int:
    """Size of the pages behind a memfd: 4 KiB, or the huge page's.

    Asked of the file system, because `st_blksize` also says 2 MiB for ordinary shared memory that
    may get transparent huge pages.
    """
    return os.fstatvfs(descriptor).f_bsize


def check_sealed(descriptor: int, length: int) -> None:
    """Refuse (BAD_MEMORY) what is not a memfd of ordinary pages, sealed and at least `length` bytes long.

    The seal is looked at before the size: once F_SEAL_SHRINK is there it cannot be taken away, so the
    size seen afterwards stays true. Only a memfd can carry that seal (a file on a tmpfs mount refuses
    all seals), and memfds live on the kernel's own mount, which has no size limit. Writing into a
    hole that its owner punched therefore never meets a full file system, the one other way to
    SIGBUS; reading one gives zeros. Huge pages are refused because theirs come from a pool that
    can be empty at the moment a hole is written.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise _refuse("the descriptor is not a memfd: create the memory with memfd_create(MFD_ALLOW_SEALING)") from None
    if page_bytes(descriptor) != mmap.PAGESIZE:
        raise _refuse(
            "the memfd has huge pages, whose pool may run dry under the daemon: create it without MFD_HUGETLB"
        )
    if not seals & fcntl.F_SEAL_SHRINK:
        raise _refuse(
            "the memory does not carry F_SEAL_SHRINK, so it could be truncated under the daemon: "
            "add the seal with fcntl(F_ADD_SEALS) after setting its size"
        )
    size = os.fstat(descriptor).st_size
    if size < length:
        raise _refuse(
            f"the memfd has {size} bytes but {length} were announced: set its size with ftruncate before sealing it"
        )


def map_shared(descriptor: int, length: int) -> mmap.mmap:
    """Map the first `length` bytes readable and writable. Raises FlexKVError: BAD_MEMORY, OUT_OF_FILES."""
    try:
        return mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_out_of_files(error):  # a mapping keeps a descriptor of its own
            raise out_of_files(f"{length} bytes of a client cannot be mapped", error) from error
        raise _refuse(
            f"{length} bytes cannot be mapped writable ({error}): send a descriptor opened for reading and writing, "
            "without F_SEAL_WRITE or F_SEAL_FUTURE_WRITE, and leave the daemon enough address space"
        ) from error


def _refuse(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_MEMORY, why)
