"""The limit of open files: raising it, and the words for an error that comes of it.

Every segment of an SSD directory, every segment of the arena, every client and every memory it registers is an open
file. Owns no count of them: what a configuration needs is `flexkvd.file_limit`'s. Asked wherever a file, a socket or a
mapping is opened, so that want of files is never told as want of rights.
"""

from __future__ import annotations

import errno
import resource

from flexkv_py.errors import ErrorCode, FlexKVError

CURE = "raise it by LimitNOFILE= in the service's unit, or by ulimit -n where the program is started"


def limit() -> int:
    """Files this process may have open once `raise_limit` was called."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return hard if hard >= 0 else 1 << 31  # RLIM_INFINITY: more than the kernel can number


def raise_limit() -> None:
    """Let this process, and the children it starts, open as many files as it may ask for."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def is_out_of_files(error: OSError) -> bool:
    """Whether the process (EMFILE) or the whole machine (ENFILE) has no open file left."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def out_of_files(what: str, error: OSError | None = None) -> FlexKVError:
    """The coded error for `what` could not be done; without `error` it is the process that is at its limit."""
    if error is not None and error.errno == errno.ENFILE:
        why = "this machine has as many files open as it may: raise the sysctl fs.file-max, or end other programs"
    else:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        why = f"the process has as many files open as it may, {soft} (RLIMIT_NOFILE): {CURE}"
    return FlexKVError(ErrorCode.OUT_OF_FILES, f"{what}: {why}")
