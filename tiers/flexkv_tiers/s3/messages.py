"""What the S3 store asks its byte worker and what it hears back. Plain data; travels as msgpack."""

from __future__ import annotations

from enum import StrEnum

import msgspec

LIST_COUNT_MAX = 1000
DELETE_COUNT_MAX = 1000
"""Objects per listing page and per batched delete: S3's own limits."""


class Trouble(StrEnum):
    """Why an attempt failed, as far as it decides what to do next."""

    MISSING = "missing"
    CORRUPT = "corrupt"
    FULL = "full"
    DENIED = "denied"
    EXPIRED = "expired"
    SKEWED = "skewed"
    REGION = "region"
    CERTIFICATE = "certificate"
    BUCKET_MISSING = "bucket_missing"
    UNREACHABLE = "unreachable"
    THROTTLED = "throttled"
    TIMEOUT = "timeout"
    SERVER = "server"
    CUT = "cut"
    REFUSED = "refused"
    STOPPED = "stopped"


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One chunk in the arena: its frame number and its length in bytes."""

    frame: int
    length: int


class Put(msgspec.Struct, frozen=True, tag=True):
    """Store a record: this header, then these chunks. One that is there already may stay."""

    name: str
    header: bytes
    spans: list[Span]


class BeginUpload(msgspec.Struct, frozen=True, tag=True):
    """Begin an upload in parts."""

    name: str


class PutPart(msgspec.Struct, frozen=True, tag=True):
    """Store the bytes from `start` to `end` of a record as a part (counted from 1) of a begun upload."""

    name: str
    upload: str
    part: int
    header: bytes
    spans: list[Span]
    start: int
    end: int


class EndUpload(msgspec.Struct, frozen=True, tag=True):
    """Make an object of these parts; without any: give the upload up."""

    name: str
    upload: str
    etags: list[str]


class Sweep(msgspec.Struct, frozen=True, tag=True):
    """Give up uploads of our prefix that somebody began more than `age_s` ago and never ended."""

    age_s: float


class Get(msgspec.Struct, frozen=True, tag=True):
    """Read chunks `chunk_first` and later of a block's record into their frames; `spans` lists all chunks."""

    name: str
    namespace: bytes
    shard: int
    key: bytes
    parent: bytes
    spans: list[Span]
    chunk_first: int


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Delete these objects, at most DELETE_COUNT_MAX; one that is not there is no failure."""

    names: list[str]


class ListPage(msgspec.Struct, frozen=True, tag=True):
    """List the page that starts at `token`; empty: the first."""

    token: str


class Check(msgspec.Struct, frozen=True, tag=True):
    """Is the bucket there, and may we list it?"""


class Landed(msgspec.Struct, frozen=True, tag=True):
    """A chunk is in its frame and its checksum holds."""

    chunk: int
    checksum: bytes


class Stored(msgspec.Struct, frozen=True, tag=True):
    """The object is there; `present`: it was before, and its bytes were not sent."""

    present: bool


class Begun(msgspec.Struct, frozen=True, tag=True):
    """An upload in parts can go on under this id."""

    upload: str


class PartStored(msgspec.Struct, frozen=True, tag=True):
    """A part is there; its tag is what `EndUpload` names it by."""

    etag: str


class Swept(msgspec.Struct, frozen=True, tag=True):
    """How many uploads were given up."""

    count: int


class ListedGroup(msgspec.Struct, frozen=True):
    """Blocks of one namespace, shard and size: keys and parents (16 bytes each) joined."""

    namespace: bytes
    shard: int
    record_bytes: int
    keys: bytes
    parents: bytes


class Page(msgspec.Struct, frozen=True, tag=True):
    """One page of a listing. `foreign` objects are not ours, `damaged` ones cannot be a record."""

    groups: list[ListedGroup]
    foreign: int
    damaged: int
    token_next: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The attempt's last reply when it did not succeed; `detail` is a sentence for people."""

    trouble: Trouble
    detail: str


Request = Put | BeginUpload | PutPart | EndUpload | Sweep | Get | Delete | ListPage | Check
Reply = Stored | Begun | PartStored | Swept | Landed | Page | Failed
