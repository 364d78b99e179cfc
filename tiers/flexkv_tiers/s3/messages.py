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
    SILENT = "silent"
    SCHEME = "scheme"
    FOREIGN = "foreign"


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One chunk in the arena: its frame number and its length in bytes."""

    frame: int
    length: int


class Put(msgspec.Struct, frozen=True, tag=True):
    """Store a record: this header, then these chunks. A good one that is there already may stay, unless `replace`.

    Without header and chunks: an empty object whose name says all.
    """

    name: str
    header: bytes
    spans: list[Span]
    replace: bool = False


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


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One record of a pack: its header, and its chunks."""

    header: bytes
    spans: list[Span]


class PutPack(msgspec.Struct, frozen=True, tag=True):
    """Store records as one object: this index, then each record as it would stand alone."""

    name: str
    index: bytes
    parts: list[Part]


class Get(msgspec.Struct, frozen=True, tag=True):
    """Read chunks from `chunk_first` to `chunk_end` (0: the last) of a record; `spans` lists all its chunks.

    A record of `record_bytes` in a pack lies at `offset` of an object of `object_bytes`; 0 and 0: the
    record is the object. Unless it `lands`, what comes is only checked, and no frame is touched.
    """

    name: str
    namespace: bytes
    shard: int
    key: bytes
    parent: bytes
    spans: list[Span]
    chunk_first: int
    offset: int = 0
    object_bytes: int = 0
    record_bytes: int = 0
    chunk_end: int = 0
    lands: bool = True


class GetIndex(msgspec.Struct, frozen=True, tag=True):
    """Read the first `index_bytes` of an object of `object_bytes`."""

    name: str
    index_bytes: int
    object_bytes: int


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Delete these objects, at most DELETE_COUNT_MAX; one that is not there is no failure."""

    names: list[str]


class ListPage(msgspec.Struct, frozen=True, tag=True):
    """List the page of names that begin with `start` and follow `after` (empty: from the first).

    Objects last written before `expires_s` (seconds since 1970; 0: none) are listed as expired only.
    """

    start: str
    after: str
    expires_s: float = 0.0


class Check(msgspec.Struct, frozen=True, tag=True):
    """Is the bucket there, and may we list it? Without `asks`: only make ready what it takes to ask."""

    asks: bool = True


class Landed(msgspec.Struct, frozen=True, tag=True):
    """A chunk is in its frame and its checksum holds."""

    chunk: int
    checksum: bytes


class Stored(msgspec.Struct, frozen=True, tag=True):
    """The object is there and takes `object_bytes`; `present`: it was there before, and ours was not sent."""

    present: bool
    object_bytes: int


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


class ListedPack(msgspec.Struct, frozen=True, array_like=True):
    """A pack, or the marks of one: name and size."""

    name: str
    object_bytes: int


class Page(msgspec.Struct, frozen=True, tag=True):
    """One page of a listing. `foreign` objects are not ours, `damaged` ones cannot be a record.

    The next page follows `after_next`; empty: this was the last.
    """

    groups: list[ListedGroup]
    packs: list[ListedPack]
    expired: list[str]
    foreign: int
    damaged: int
    after_next: str


class Index(msgspec.Struct, frozen=True, tag=True):
    """The index of a pack, unchecked."""

    raw: bytes


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The attempt's last reply when it did not succeed; `detail` is a sentence for people."""

    trouble: Trouble
    detail: str


Request = Put | PutPack | BeginUpload | PutPart | EndUpload | Sweep | Get | GetIndex | Delete | ListPage | Check
Reply = Stored | Begun | PartStored | Swept | Landed | Page | Index | Failed
