"""What both clients say and hear in the same words: arguments → messages, replies → public values.

Pure. Refuses here what the packed form of a message would hide from the daemon, such as keys whose
lengths only add up; everything else the daemon checks itself.
"""

from __future__ import annotations

import fcntl
import heapq
import math
import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from flexkv_py.core.messages import Outcome
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry
from flexkv_py.keys import KEY_BYTES, BlockKey, NamespaceDigest, keys_of_tokens
from flexkv_py.wire.messages import (
    ABSENT_ENTRY_BYTES,
    ATTACH_KEYS_MAX,
    DEVICE_DESCRIPTORS_MAX,
    HEAT_ENTRY_BYTES,
    MISS_ENTRY_BYTES,
    PROTOCOL_VERSION,
    REPLAYED_ENTRY_BYTES,
    REPORT_PAGES_MAX,
    DeviceAllocation,
    Hello,
    Progress,
    RegisterMemory,
    Report,
)

SOCKET_PATH_BYTES_MAX = 107
"""The kernel's limit for the path of a Unix socket (108 with the closing zero)."""

DURATION_S_MAX = 30 * 24 * 3600.0

PAGE_NUMBER_BYTES = 4

WAIT_SLICE_S = 5.0
"""One request waits at most this long in the daemon, so that a daemon that hangs is noticed."""

WAIT_GRACE_S = 0.25
"""How much later than a wait's own time its last reply may come."""


@dataclass(frozen=True)
class TicketProgress:
    """How far a ticket is. `done` False means the wait's time ended first: nothing is promised yet.

    `chunks` counts: chunks 0 to `chunks` - 1 of every key are copied; `length` is the leading run of
    keys that are usable; `outcomes` one word per key once done; `stored` what a flush copied; `tiers`
    one byte per key once done: the tier a loaded block was taken from (0: none).
    """

    done: bool
    chunks: int
    length: int
    outcomes: list[Outcome]
    detail: str
    retry_after_s: float | None
    stored: int
    tiers: bytes


def hello_of(geometry: Geometry, role: str, instance: str, shard: int, tenant: str, epoch: int, token: str) -> Hello:
    """The first message of every connection."""
    return Hello(0, PROTOCOL_VERSION, geometry, role, instance, shard, tenant, epoch, token, f"pid {os.getpid()}")


def closed() -> FlexKVError:
    """The error of every call on a closed client."""
    return FlexKVError(ErrorCode.CANCELLED, "this client is closed: make a new one to go on")


def check_path(path: str | Path) -> str:
    """The socket's path, if a socket can have it. Raises BAD_SOCKET_PATH."""
    length = len(os.fsencode(path))
    if not 1 <= length <= SOCKET_PATH_BYTES_MAX:
        raise FlexKVError(
            ErrorCode.BAD_SOCKET_PATH,
            f"the socket path has {length} bytes and a Unix socket takes 1 to {SOCKET_PATH_BYTES_MAX}: configure the "
            f"daemon with a shorter one, such as /run/flexkvd/worker.sock (given: {os.fspath(path)!r})",
        )
    return os.fspath(path)


def pack_keys(keys: Sequence[BlockKey]) -> bytes:
    """Keys as one field. Raises BAD_KEY."""
    try:
        packed, lengths = b"".join(keys), set(map(len, keys))  # passes in C: a match of 1,000 keys is worth it
        if lengths <= {KEY_BYTES} and len(packed) == KEY_BYTES * len(keys):
            return packed
        why = f"one of {len(keys)} keys has not {KEY_BYTES} bytes"
    except TypeError as error:
        why = f"the keys are no list of bytes objects ({error})"
    raise FlexKVError(
        ErrorCode.BAD_KEY, f"{why}: a block key is {KEY_BYTES} bytes, made by client.keys() or flexkv_py.keys"
    )


def attach_slices(keys: Sequence[BlockKey]) -> list[bytes]:
    """Keys to attach, as many to a message as it takes; one empty message where there are none. Raises BAD_KEY."""
    packed, slice_bytes = pack_keys(keys), ATTACH_KEYS_MAX * KEY_BYTES
    return [packed[start : start + slice_bytes] for start in range(0, len(packed) or 1, slice_bytes)]


def pack_pages(pages: Sequence[int]) -> bytes:
    """Page numbers as u32 little endian. Raises PAGE_OUT_OF_RANGE, BAD_ARGUMENT."""
    try:
        return array("I", _numbers(pages)).tobytes()
    except OverflowError:
        raise FlexKVError(
            ErrorCode.PAGE_OUT_OF_RANGE, "a page number is negative or above 2**32: give page numbers of the memory"
        ) from None
    except TypeError as error:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT, f"pages are no list of integers ({error}): give page numbers of the memory"
        ) from None


def _numbers(values: Sequence[int]) -> Sequence[int]:
    """`values`, unless `array` would take them for packed bytes. Raises TypeError."""
    if isinstance(values, bytes | bytearray):
        raise TypeError("got bytes")
    return values


def pack_block_pages(pages: Sequence[int], key_count: int, pages_per_block: int) -> bytes:
    """Pages of whole blocks, in the order of their keys. Raises BAD_ARGUMENT, PAGE_OUT_OF_RANGE."""
    packed = pack_pages(pages)
    page_count = len(packed) // PAGE_NUMBER_BYTES
    if page_count != key_count * pages_per_block:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"{page_count} pages for {key_count} keys: give {pages_per_block} pages per key, in the order of the keys",
        )
    return packed


def report_of(entries: bytes, absents: bytes, replayed: bytes, misses: bytes) -> Report:
    """A report, cut to its limits: of too many entries those with the largest counts stay. Raises BAD_ARGUMENT."""
    for name, packed, entry_bytes in (
        ("entries", entries, HEAT_ENTRY_BYTES),
        ("absents", absents, ABSENT_ENTRY_BYTES),
        ("replayed", replayed, REPLAYED_ENTRY_BYTES),
        ("misses", misses, MISS_ENTRY_BYTES),
    ):
        if not isinstance(packed, bytes) or len(packed) % entry_bytes:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"{name} is no bytes object of whole entries: pack {entry_bytes // 4} u32 little endian per entry",
            )
        if name != "entries" and len(packed) > entry_bytes * REPORT_PAGES_MAX:
            raise FlexKVError(
                ErrorCode.LIMIT_EXCEEDED,
                f"{name} has {len(packed) // entry_bytes} entries: report at most {REPORT_PAGES_MAX} at a time",
            )
    if len(entries) > HEAT_ENTRY_BYTES * REPORT_PAGES_MAX:
        rows = struct.iter_unpack("<4I", entries)
        entries = b"".join(struct.pack("<4I", *row) for row in heapq.nlargest(REPORT_PAGES_MAX, rows, itemgetter(3)))
    return Report(0, entries, absents, replayed, misses)


def milliseconds(duration_s: float, name: str) -> int:
    """A duration for the wire, rounded up so that little is never none. Raises BAD_ARGUMENT."""
    try:
        if 0 <= duration_s <= DURATION_S_MAX:
            return math.ceil(1000 * duration_s)
    except TypeError:
        pass  # no number at all
    raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"{name} is {duration_s!r}: give seconds from 0 to {DURATION_S_MAX:.0f}")


def wait_end_s(now_s: float, timeout_s: float | None) -> float:
    """When a wait that begins now ends (None: never). Raises BAD_ARGUMENT."""
    if timeout_s is None or timeout_s == math.inf:
        return math.inf
    return now_s + milliseconds(timeout_s, "timeout_s") / 1000


def shard_list(shards: Sequence[int]) -> list[int]:
    """The shards a match asks about. Raises BAD_ARGUMENT."""
    try:
        return list(shards)
    except TypeError:
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"shards is {shards!r}: give a list of shard numbers") from None


def event_handle(after: bytes) -> bytes:
    """The handle of the event that a save waits for, empty for none. Raises BAD_ARGUMENT."""
    if isinstance(after, bytes | bytearray | memoryview):
        return bytes(after)
    raise FlexKVError(
        ErrorCode.BAD_ARGUMENT, f"after is {after!r}: give the bytes of an event's handle, or b'' to wait for none"
    )


def progress_of(progress: Progress) -> TicketProgress:
    """A reply to `wait` as the public value. Raises BAD_MESSAGE."""
    try:
        outcomes = [Outcome(word) for word in progress.outcomes]
    except ValueError as error:
        raise FlexKVError(
            ErrorCode.BAD_MESSAGE,
            f"the daemon named an outcome this client does not know ({error}): install the same version on both ends",
        ) from None
    return TicketProgress(
        done=progress.done,
        chunks=progress.chunks,
        length=progress.length,
        outcomes=outcomes,
        detail=progress.detail,
        retry_after_s=progress.retry_after_ms / 1000 if progress.retry_after_ms > 0 else None,
        stored=progress.stored,
        tiers=progress.tiers,
    )


@dataclass(frozen=True)
class WaitSlice:
    """One request of a longer wait: how long the daemon holds it, and when the client stops waiting."""

    hold_s: float
    reply_by_s: float


def slice_wait(now_s: float, end_s: float, timeout_s: float) -> WaitSlice:
    """The next request of a wait that ends at `end_s` (may be infinite); the daemon answers in `timeout_s`."""
    hold_s = min(WAIT_SLICE_S, max(0.0, end_s - now_s))
    return WaitSlice(hold_s, min(now_s + hold_s + timeout_s, end_s + WAIT_GRACE_S))


def answers_wait(progress: Progress, chunk: int | None) -> bool:
    """Is this what a wait for chunks 0..`chunk` (None: for the end) was waiting for?"""
    return progress.done or (chunk is not None and progress.chunks > chunk)


def check_chunk(chunk: int | None, chunk_count: int) -> int:
    """The chunk as the wire spells it (-1: the end). Raises BAD_ARGUMENT."""
    if chunk is None:
        return -1
    if not isinstance(chunk, int) or not 0 <= chunk < chunk_count:
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"chunk {chunk!r}: blocks have chunks 0 to {chunk_count - 1}")
    return chunk


def keys_of(
    namespace: NamespaceDigest, tokens: Sequence[int], tokens_per_block: int, parent: BlockKey
) -> list[BlockKey]:
    """Keys of every full block of `tokens`. Raises BAD_KEY for the parent, BAD_ARGUMENT for a token."""
    pack_keys([parent])
    try:
        return keys_of_tokens(namespace, _numbers(tokens), tokens_per_block, parent)
    except OverflowError:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT, "a token id is negative or above 2**32: give token ids as the model has them"
        ) from None
    except TypeError as error:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT, f"tokens are no list of integers ({error}): give token ids as the model has them"
        ) from None


def pages_per_block(request: RegisterMemory, geometry: Geometry) -> int:
    """How many pages of this memory one block takes: a page of a window is a whole block."""
    return 1 if request.kind == "window" else max(1, geometry.tokens_per_block // max(1, request.page_tokens))


def duplicate(descriptor: int) -> int:
    """A duplicate of the caller's descriptor, closed on exec. Raises BAD_MEMORY."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)
    except (OSError, TypeError, ValueError, OverflowError) as error:
        raise FlexKVError(
            ErrorCode.BAD_MEMORY, f"descriptor {descriptor!r} cannot be duplicated ({error}): pass an open memfd"
        ) from error


def duplicates(allocations: Sequence[DeviceAllocation], descriptors: Sequence[int]) -> list[int]:
    """Duplicates of the descriptors that go with these allocations, all or none. Raises BAD_ARGUMENT, BAD_MEMORY."""
    wanted = sum(not each.handle for each in allocations)
    if len(descriptors) != wanted or wanted > DEVICE_DESCRIPTORS_MAX:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"{len(descriptors)} descriptors for {wanted} allocations without a handle: give one for each, in their "
            f"order, and at most {DEVICE_DESCRIPTORS_MAX} in one memory",
        )
    made: list[int] = []
    try:
        for descriptor in descriptors:
            made.append(duplicate(descriptor))  # noqa: PERF401 - those made are closed when one fails
    except FlexKVError:
        for each in made:
            os.close(each)
        raise
    return made


@contextmanager
def goes_on_unanswered() -> Iterator[None]:
    """Around a reset: no reply in time says that it may wait in the daemon, not that it failed. Raises FlexKVError."""
    try:
        yield
    except FlexKVError as error:
        if error.code is not ErrorCode.DEADLINE_EXCEEDED:
            raise
        raise FlexKVError(
            ErrorCode.DEADLINE_EXCEEDED,
            "the reset has not ended within the call's deadline; a daemon that has got it serves nothing of the "
            "namespace any more and goes on until all tiers are cleared, S3 when it is back: `resets` in /v1/status "
            "says what it waits for; ask again with a larger timeout_s to hear of its end",
        ) from error


@contextmanager
def giving_back(failure: object) -> Iterator[None]:
    """Around the release that ends a `with`: it hides no `failure` of the body; a lost daemon has its lease back."""
    try:
        yield
    except FlexKVError as error:
        if failure is None and error.code is not ErrorCode.DAEMON_LOST:
            raise
