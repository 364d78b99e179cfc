"""One attempt at one request on a bucket, bytes straight from and into the arena.

Owns the boto3 client. Every attempt ends by itself within boto3's timeouts; trying again is the
store's business. Runs in the byte worker only: `python -m flexkv_tiers.s3.objects`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import boto3
import msgspec
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.handlers import add_expect_header

from flexkv_py.core.messages import BlockName
from flexkv_py.keys import BlockKey, NamespaceDigest
from flexkv_tiers.base import TierFault
from flexkv_tiers.byteworkers.child import Call, serve
from flexkv_tiers.codec import HEADER_BYTES, Header, chunk_checksum, parse_header
from flexkv_tiers.memory import Arena
from flexkv_tiers.s3.config import S3Config
from flexkv_tiers.s3.faults import trouble_of
from flexkv_tiers.s3.messages import (
    Check,
    Delete,
    Failed,
    Get,
    GetIndex,
    Index,
    Landed,
    ListPage,
    Put,
    PutPack,
    Reply,
    Request,
    Span,
    Trouble,
)
from flexkv_tiers.s3.pages import read_page

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from mypy_boto3_s3 import S3Client


SEND_BYTES_MAX = 256 * 1024
"""Small parts of a record are sent together up to this size: ten sends of 4 KiB cost more than boto3 itself."""
ASK_BYTES_MIN = 256 * 1024
"""Uploads from here on ask first whether the server takes them (100-continue); for others that costs more than it
saves, and servers read that much of a body they refuse."""


class Objects:
    """The bucket, as the byte worker's handler."""

    def __init__(self, config: S3Config, arena: Arena) -> None:
        self._config = config
        self._arena = arena
        self._unusable: BotoCoreError | None = None
        try:
            self._client = _open_client(config)
        except BotoCoreError as error:  # every call answers with it, so that the daemon can say what is wrong
            self._unusable = error
        self._decoder = msgspec.msgpack.Decoder(Request)
        self._encoder = msgspec.msgpack.Encoder()

    def __call__(self, raw: bytes, call: Call) -> Iterator[bytes]:
        """Run one request; an attempt that fails ends with `Failed`."""
        request = self._decoder.decode(raw)
        try:
            for reply in self._run(request, call):
                yield self._encoder.encode(reply)
        except Exception as error:
            failure = _failure(error, request, call.stopped)
            if failure is None:
                raise
            yield self._encoder.encode(failure)

    def _run(self, request: Request, call: Call) -> Iterator[Reply]:
        if self._unusable is not None:
            raise self._unusable
        match request:
            case Get():
                yield from self._get(request, call)
            case Put():
                self._put(request.name, [memoryview(request.header), *self._views(request.spans)], call)
            case PutPack():
                parts = ([memoryview(part.header), *self._views(part.spans)] for part in request.parts)
                self._put(request.name, [memoryview(request.index), *chain.from_iterable(parts)], call)
            case GetIndex():
                raw = bytearray(request.index_bytes)
                with closing(self._open(request.name, 0, len(raw), request.object_bytes)) as body:
                    _fill(body, memoryview(raw), call)
                yield Index(bytes(raw))
            case Delete():
                yield from self._delete(request)
            case ListPage():
                yield read_page(self._client, self._config, request)
            case Check():
                self._client.head_bucket(Bucket=self._config.bucket)

    def _views(self, spans: list[Span]) -> list[memoryview]:
        return [self._arena.view(span.frame, span.length) for span in spans]

    def _put(self, name: str, parts: list[memoryview], call: Call) -> None:
        record = _Record(parts, call)
        self._client.put_object(
            Bucket=self._config.bucket,
            Key=name,
            Body=record,  # type: ignore[arg-type]  # it is as file-like as boto3 needs
            ContentLength=len(record),
        )

    def _get(self, request: Get, call: Call) -> Iterator[Landed]:
        begin = request.offset
        ends = list(accumulate((span.length for span in request.spans), initial=begin + HEADER_BYTES))
        first, end = request.chunk_first, ends[-1]
        object_bytes = request.object_bytes or end
        assert first < len(request.spans)
        raw_header = bytearray(HEADER_BYTES)
        if first > 0:  # a later chunk alone has its header to be judged by, too
            with closing(self._open(request.name, begin, begin + HEADER_BYTES, object_bytes)) as body:
                _fill(body, memoryview(raw_header), call)
        with closing(self._open(request.name, ends[first] if first else begin, end, object_bytes)) as body:
            if first == 0:
                _fill(body, memoryview(raw_header), call)
            header = _expect_header(raw_header, request)
            for chunk, span in enumerate(request.spans[first:], first):
                view = self._arena.view(span.frame, span.length)
                _fill(body, view, call)
                checksum = chunk_checksum(request.key, chunk, view)
                if checksum != header.chunks[chunk].checksum:
                    raise _AttemptFailed(Trouble.CORRUPT, f"chunk {chunk} does not match its checksum")
                yield Landed(chunk, checksum)

    def _open(self, name: str, start: int, end: int, object_bytes: int) -> StreamingBody:
        """The object's bytes from `start` to `end`, provided it has exactly `object_bytes`."""
        answer = self._client.get_object(Bucket=self._config.bucket, Key=name, Range=f"bytes={start}-{end - 1}")
        expected = f"bytes {start}-{end - 1}/{object_bytes}"
        if answer.get("ContentRange") != expected:
            answer["Body"].close()
            raise _AttemptFailed(Trouble.CORRUPT, f"the object is {answer.get('ContentRange')}, not {expected}")
        return answer["Body"]

    def _delete(self, request: Delete) -> Iterator[Failed]:
        answer = self._client.delete_objects(
            Bucket=self._config.bucket,
            Delete={"Objects": [{"Key": name} for name in request.names], "Quiet": True},
        )
        refused = [error for error in answer.get("Errors", []) if error.get("Code") != "NoSuchKey"]
        if refused:
            first = refused[0]
            yield Failed(
                Trouble.DENIED if first.get("Code") == "AccessDenied" else Trouble.SERVER,
                f"{len(refused)} of {len(request.names)} objects were not deleted, the first is {first.get('Key')}: "
                f"{first.get('Code')} {first.get('Message')}",
            )


class _AttemptFailed(Exception):
    """An attempt failed for a reason that is ours to see, not boto3's."""

    def __init__(self, trouble: Trouble, detail: str) -> None:
        super().__init__(detail)
        self.trouble = trouble


class _Record:
    """A record as the body of an upload: file-like enough for boto3, without joining its parts.

    `read` hands out whole parts, small ones joined, whatever size is asked for: urllib3 asks for 16 KiB
    and sends what it is given.
    """

    def __init__(self, parts: list[memoryview], call: Call) -> None:
        self._parts = parts
        self._call = call
        self._next = 0

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def read(self, _size: int = -1) -> memoryview | bytes:
        if self._call.stopped:
            raise _AttemptFailed(Trouble.STOPPED, "stopped in mid-upload")
        rest = self._parts[self._next :]
        fitting = sum(end <= SEND_BYTES_MAX for end in accumulate(len(part) for part in rest))
        run = rest[: max(1, fitting)]
        self._next += len(run)
        return run[0] if len(run) == 1 else b"".join(run)

    def tell(self) -> int:
        return sum(len(part) for part in self._parts[: self._next])

    def seek(self, position: int) -> None:
        assert position == 0, "boto3 only ever rewinds: after signing, or to send again"
        self._next = 0


def _open_client(config: S3Config) -> S3Client:
    client = boto3.client(
        "s3",
        endpoint_url=config.endpoint_url or None,
        region_name=config.region or None,
        verify=config.ca_bundle or None,
        config=Config(
            connect_timeout=config.connect_timeout_s,
            read_timeout=config.read_timeout_s,
            max_pool_connections=config.threads,
            retries={"total_max_attempts": 1},  # the store retries, within the move's deadline
            tcp_keepalive=True,
            # A record carries its own checksums; a second one over the body would double an upload's cost.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": config.addressing_style, "payload_signing_enabled": config.signs_payload},
        ),
    )
    client.meta.events.unregister("before-call.s3", add_expect_header)
    client.meta.events.register("before-call.s3.PutObject", _ask_first_if_large)
    return client


def _ask_first_if_large(params: dict[str, Any], **_: object) -> None:
    """Do for large uploads what boto3 does for all: hear a refusal before the body is sent."""
    if len(params["body"]) >= ASK_BYTES_MIN:
        params["headers"]["Expect"] = "100-continue"


def _fill(body: StreamingBody, view: memoryview, call: Call) -> None:
    """Read exactly as much as fits; a stop wakes it by shutting the connection down."""

    def interrupt() -> None:
        # Closing would wait for the reading thread instead of waking it. The error: it has read all already.
        with suppress(ValueError, RuntimeError, OSError):
            body._raw_stream.shutdown()  # type: ignore[attr-defined]

    call.interruptible_by(interrupt)
    try:
        at = 0
        while at < len(view):
            count = body.readinto(view[at:])  # type: ignore[arg-type]  # the stubs ask for a file
            if count == 0:
                raise _AttemptFailed(Trouble.CUT, "the connection was cut in mid-object")
            at += count
    finally:
        call.interruptible_by(None)


def _expect_header(raw: bytearray, request: Get) -> Header:
    """The record's header, provided it is exactly the one this block must have."""
    header = parse_header(raw)
    block = BlockName(
        NamespaceDigest(request.namespace), request.shard, BlockKey(request.key), BlockKey(request.parent)
    )
    if not header.matches(block):
        raise _AttemptFailed(Trouble.CORRUPT, f"the object holds another block, {header.block.key.hex()}")
    if [entry.length for entry in header.chunks] != [span.length for span in request.spans]:
        raise _AttemptFailed(Trouble.CORRUPT, "the object's chunks are not cut as this namespace cuts them")
    return header


def _failure(error: Exception, request: Request, stopped: bool) -> Failed | None:
    """The error as a reply; None when it is a bug."""
    if isinstance(error, _AttemptFailed):
        trouble: Trouble | None = error.trouble
    elif isinstance(error, TierFault):  # of `parse_header`, its only source here
        trouble = Trouble.CORRUPT
    else:
        trouble = trouble_of(error)
    if stopped and trouble is not None:
        trouble = Trouble.STOPPED
    if trouble is Trouble.MISSING and isinstance(request, Check):  # HEAD has no body to say what is missing
        trouble = Trouble.BUCKET_MISSING
    if trouble is None:
        return None
    what = f"{type(request).__name__.lower()} {getattr(request, 'name', '')}".rstrip()
    return Failed(trouble, f"{what}: {error}")


def _open_objects(options: bytes, arena: Arena) -> Objects:
    return Objects(msgspec.msgpack.decode(options, type=S3Config), arena)


if __name__ == "__main__":
    serve(_open_objects)
