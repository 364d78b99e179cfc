"""One attempt at one request on a bucket, bytes straight from and into the arena.

Every attempt ends by itself within the configured timeouts; trying again is the store's business. Runs
in the byte worker only: `python -m flexkv_tiers.s3.objects`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain
from urllib.parse import quote

import msgspec

from flexkv_py.core.messages import BlockName
from flexkv_py.keys import BlockKey, NamespaceDigest
from flexkv_tiers.base import TierFault
from flexkv_tiers.byteworkers.child import Call, serve
from flexkv_tiers.codec import CODEC_NONE, HEADER_BYTES, Header, parse_header
from flexkv_tiers.codec.codecs import ThreadRoom
from flexkv_tiers.codec.record import check_stored, decode_into
from flexkv_tiers.memory import Arena
from flexkv_tiers.s3.bodies import Body, cut_out
from flexkv_tiers.s3.client import BucketClient
from flexkv_tiers.s3.config import S3Config
from flexkv_tiers.s3.faults import NEW_LOOK, answer_trouble, trouble_of
from flexkv_tiers.s3.messages import (
    BeginUpload,
    Begun,
    Check,
    Delete,
    EndUpload,
    Failed,
    Get,
    GetIndex,
    Index,
    Landed,
    ListPage,
    PartStored,
    Put,
    PutPack,
    PutPart,
    Reply,
    Request,
    Span,
    Stored,
    Sweep,
    Swept,
    Trouble,
)
from flexkv_tiers.s3.names import listing_prefix
from flexkv_tiers.s3.pages import read_page
from flexkv_tiers.s3.proxy import ProxyRefused, proxy_of
from flexkv_tiers.s3.signing import Signer, tls_of
from flexkv_tiers.s3.wire import Answer, ConnectFailed, Route, Wire, WrongScheme

ASK_BYTES_MIN = 256 * 1024
"""Uploads from here on ask first whether the server takes them (100-continue); for others that costs more than it
saves, and servers read that much of a body they refuse."""
REOPEN_S_MIN = 1.0
"""After a denial, credentials are looked for anew, but not more often than this."""

_SAID_MAX = 200
_CODE = re.compile(r"<Code>\s*([^<]*?)\s*</Code>")
_TOTAL = re.compile(r"(?<=/)[0-9]{1,16}$")  # of a Content-Range
_MESSAGE = re.compile(r"<Message>\s*([^<]*?)\s*</Message>")

_aside = ThreadRoom()  # what a thread reads into that is for no frame as it is: as long as the longest it has met


class Objects:
    """The bucket, as the byte worker's handler."""

    def __init__(self, config: S3Config, arena: Arena) -> None:
        self._config = config
        self._arena = arena
        self._opening = threading.Lock()
        self._opened: _Opened | None = None
        self._opened_at = 0.0
        self._skips_present = True  # until this server shows that it does not know `If-None-Match`
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
            if failure.trouble in NEW_LOOK:
                self._reopen()
            yield self._encoder.encode(failure)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _run(self, request: Request, call: Call) -> Iterator[Reply]:
        bucket = self._open().bucket
        match request:
            case Get():
                yield from self._get(request, call)
            case GetIndex():
                raw = bytearray(request.index_bytes)
                with self._range(request.name, 0, len(raw), request.object_bytes, call) as (answer, _):
                    answer.fill(memoryview(raw))
                yield Index(bytes(raw))
            case Put():
                views = self._views(request.header, request.spans)
                yield self._put(request.name, views, call, replace=request.replace)
            case PutPack():
                parts = chain.from_iterable(self._views(part.header, part.spans) for part in request.parts)
                yield self._put(request.name, [memoryview(request.index), *parts], call)
            case PutPart():
                yield self._put_part(request, call)
            case BeginUpload():
                yield Begun(bucket.begin_upload(request.name))
            case EndUpload():
                bucket.end_upload(request.name, request.upload, request.etags)
            case Sweep():
                yield Swept(bucket.sweep(request.age_s))
            case Delete():
                yield from bucket.delete(request.names)
            case ListPage():
                yield read_page(bucket.client, self._config, request)
            case Check():
                self._check(request, call)

    def _check(self, request: Check, call: Call) -> None:
        if not request.asks:
            return
        query = f"list-type=2&max-keys=1&prefix={quote(listing_prefix(self._config.prefix), safe='')}"
        with self._exchange("GET", "", {}, Body([]), call, query=query) as answer:
            if answer.status != 200:
                raise _refusal(answer, _said(answer))
            if "<ListBucketResult" not in (text := answer.text()):
                raise AttemptFailed(Trouble.FOREIGN, f"the server answers a listing with {text[:_SAID_MAX].strip()!r}")

    # -------------------------------------------------------------- uploads

    def _put(self, name: str, parts: list[memoryview], call: Call, *, replace: bool = False) -> Stored:
        """Store these parts as one object, unless it is there already; the first is its header or index."""
        body = Body(parts)
        stored = Stored(present=False, object_bytes=len(body))
        headers = self._upload_headers(len(body))
        condition = {"If-None-Match": "*"} if self._skips_present and len(body) and not replace else {}
        with self._exchange("PUT", name, headers | condition, body, call) as answer:
            status, said = answer.status, _said(answer)
            if status < 300:
                return stored
            if status not in (409, 412, 501) or not condition:
                raise _refusal(answer, said)
            self._skips_present = status != 501
        # 412: it is there, perhaps something else. 409: two of us at once. 501: no such condition here.
        if status == 412 and (held_bytes := self._held_bytes(name, parts[0], len(body), call)):
            return Stored(present=True, object_bytes=held_bytes)
        with self._exchange("PUT", name, headers, body, call) as answer:
            _expect(answer, 200)
        return stored

    def _held_bytes(self, name: str, front: memoryview, object_bytes: int, call: Call) -> int:
        """How long the object there is; 0 if it is not as good as ours, or compressed in another way, by its front."""
        found = bytearray(len(front))
        headers = {"Range": f"bytes=0-{len(front) - 1}"}
        with self._exchange("GET", name, headers, Body([]), call) as answer:
            total = int((_TOTAL.search(answer.header("Content-Range")) or "0")[0])
            if answer.status != 206 or total < len(front):
                return 0
            answer.fill(memoryview(found))
        if found == front:
            return total if total == object_bytes else 0
        with suppress(TierFault):
            if (there := parse_header(found)).record_bytes == total and there.is_like(parse_header(front)):
                return total
        return 0

    def _put_part(self, request: PutPart, call: Call) -> PartStored:
        body = Body(cut_out(self._views(request.header, request.spans), request.start, request.end))
        query = f"partNumber={request.part}&uploadId={request.upload}"
        headers = {"Content-Length": str(len(body)), "Expect": "100-continue"}
        with self._exchange("PUT", request.name, headers, body, call, query=query) as answer:
            _expect(answer, 200)
            return PartStored(answer.header("ETag"))

    def _upload_headers(self, length: int) -> dict[str, str]:
        headers = {"Content-Length": str(length)}
        if length >= ASK_BYTES_MIN:
            headers["Expect"] = "100-continue"
        if self._config.sse:
            headers["x-amz-server-side-encryption"] = self._config.sse
        if self._config.sse_kms_key_id:
            headers["x-amz-server-side-encryption-aws-kms-key-id"] = self._config.sse_kms_key_id
        return headers

    def _views(self, header: bytes, spans: Sequence[Span]) -> list[memoryview]:
        return [memoryview(header), *(self._arena.view(span.frame, span.length) for span in spans)]

    # ------------------------------------------------------------ downloads

    def _get(self, request: Get, call: Call) -> Iterator[Landed]:
        begin, first = request.offset, request.chunk_first
        last = request.chunk_end or len(request.spans)
        assert first < last <= len(request.spans)
        # Stored chunks are no longer than they are in memory; without a length the record is the object.
        most = HEADER_BYTES + sum(span.length for span in request.spans[:last])
        end = begin + (min(most, request.record_bytes or most) if first == 0 else HEADER_BYTES)
        raw_header = bytearray(HEADER_BYTES)
        with self._range(request.name, begin, end, request.object_bytes, call) as (answer, object_bytes):
            if object_bytes <= HEADER_BYTES:
                raise AttemptFailed(Trouble.CORRUPT, f"an object of {object_bytes} bytes holds no record")
            answer.fill(memoryview(raw_header))
            header = _expect_header(raw_header, request, request.record_bytes or object_bytes)
            if first == 0:
                yield from self._land(request, header, answer, range(last))
        if first > 0:  # a later chunk alone has its header to be judged by, too
            end_chunk = header.chunks[last - 1]
            start, end = begin + header.chunks[first].offset, begin + end_chunk.offset + end_chunk.room_bytes
            with self._range(request.name, start, end, object_bytes, call) as (answer, _):
                yield from self._land(request, header, answer, range(first, last))

    def _land(self, request: Get, header: Header, answer: Answer, chunks: range) -> Iterator[Landed]:
        """Chunks that come next, each decoded into its frame, or only checked."""
        for chunk in chunks:
            span, entry = request.spans[chunk], header.chunks[chunk]
            frame = self._arena.view(span.frame, span.length) if request.lands else None
            stored = _aside.view(entry.room_bytes) if frame is None or entry.codec != CODEC_NONE else frame
            answer.fill(stored)
            if frame is None:
                check_stored(request.key, chunk, entry, stored)
            else:
                decode_into(frame, request.key, chunk, entry, stored)
            yield Landed(chunk, entry.checksum)

    @contextmanager
    def _range(self, name: str, start: int, end: int, object_bytes: int, call: Call) -> Iterator[tuple[Answer, int]]:
        """The object's bytes from `start` to `end` or to its own, and how many it has.

        Provided these are `object_bytes`, if that is not 0.
        """
        headers = {"Range": f"bytes={start}-{end - 1}"}
        with self._exchange("GET", name, headers, Body([]), call) as answer:
            _expect(answer, 206)
            given = answer.header("Content-Range")
            total = object_bytes or int((_TOTAL.search(given) or "0")[0])
            end = min(end, total)
            if given != (expected := f"bytes {start}-{end - 1}/{total}"):
                raise AttemptFailed(Trouble.CORRUPT, f"the object is {given}, not {expected}")
            if answer.content_bytes not in (None, end - start):
                raise AttemptFailed(Trouble.CUT, f"{end - start} bytes were asked for, {answer.content_bytes} come")
            yield answer, total

    # ----------------------------------------------------------- connection

    def _exchange(
        self, method: str, name: str, headers: dict[str, str], body: Body, call: Call, query: str = ""
    ) -> AbstractContextManager[Answer]:
        opened = self._open()
        body.rewind()
        signed = opened.signer.sign(method, name, headers, query=query, body=body if len(body) else None)
        return opened.wire.exchange(method, signed.target, signed.headers, body.parts, call)

    def _open(self) -> _Opened:
        """Client, signer and connections, made by the first who needs them. Raises what boto3 raises."""
        with self._opening:
            if self._opened is None:
                try:
                    self._opened, self._opened_at = _Opened(self._config), time.monotonic()
                except ValueError as error:  # botocore on endpoints that are no URL
                    raise AttemptFailed(Trouble.REFUSED, f"s3.endpoint_url: {error}") from error
                except ProxyRefused as error:
                    raise AttemptFailed(Trouble.UNREACHABLE, str(error)) from error
                except OSError as error:
                    raise AttemptFailed(Trouble.CERTIFICATE, f"the certificates cannot be read: {error}") from error
            return self._opened

    def _reopen(self) -> None:
        """Have the next request look for credentials anew: they may have been replaced since."""
        with self._opening:
            if self._opened is not None and time.monotonic() - self._opened_at >= REOPEN_S_MIN:
                self._opened = None  # running requests end on what they have


class _Opened:
    """What requests need, from one look at boto3's configuration."""

    def __init__(self, config: S3Config) -> None:
        self.bucket = BucketClient(config)
        self.signer = Signer(self.bucket.session, self.bucket.client, config.bucket)
        url = self.signer.url
        tls = tls_of(self.bucket.session, url, config.ca_bundle)
        route = Route(url, tls, proxy_of(url), config.connect_timeout_s, config.read_timeout_s)
        self.wire = Wire(route, idle_max=config.threads)

    def close(self) -> None:
        self.wire.close()
        self.bucket.close()


class AttemptFailed(Exception):
    """An attempt failed for a reason that is ours to see, not boto3's."""

    def __init__(self, trouble: Trouble, detail: str) -> None:
        super().__init__(detail)
        self.trouble = trouble


def _said(answer: Answer) -> tuple[str, str]:
    """Code and message of an error answer; reads a short body to its end."""
    text = answer.text()
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code is None and answer.status == 400 and "HTTPS" in text:  # whoever serves S3 says its errors in XML
        raise WrongScheme(f"the server wants TLS: {text[:_SAID_MAX].strip()!r}")
    return code[1] if code else "", message[1] if message else ""


def _expect(answer: Answer, status: int) -> None:
    if answer.status != status:
        raise _refusal(answer, _said(answer))
    if status == 200:
        answer.text()


def _refusal(answer: Answer, said: tuple[str, str]) -> AttemptFailed:
    code, message = said
    return AttemptFailed(answer_trouble(code, answer.status), f"{answer.status} {code} {message}".rstrip())


def _expect_header(raw: bytearray, request: Get, record_bytes: int) -> Header:
    """The header of a record that takes `record_bytes`, provided it is exactly the one this block must have."""
    header = parse_header(raw)
    block = BlockName(
        NamespaceDigest(request.namespace), request.shard, BlockKey(request.key), BlockKey(request.parent)
    )
    if not header.matches(block):
        raise AttemptFailed(Trouble.CORRUPT, f"the object holds another block, {header.block.key.hex()}")
    if header.raw_bytes != tuple(span.length for span in request.spans):
        raise AttemptFailed(Trouble.CORRUPT, "the object's chunks are not cut as this namespace cuts them")
    if header.record_bytes != record_bytes:
        raise AttemptFailed(Trouble.CORRUPT, f"a record of {header.record_bytes} bytes lies in {record_bytes}")
    return header


def _failure(error: Exception, request: Request, stopped: bool) -> Failed | None:
    """The error as a reply; None when it is a bug."""
    trouble: Trouble | None
    if isinstance(error, AttemptFailed):
        trouble = error.trouble
    elif isinstance(error, TierFault):  # of `parse_header` and `check_stored`
        trouble = Trouble.CORRUPT
    elif isinstance(error, ConnectFailed):
        trouble = Trouble.CERTIFICATE if error.certificate else Trouble.UNREACHABLE
    elif isinstance(error, WrongScheme):
        trouble = Trouble.SCHEME
    else:
        trouble = trouble_of(error)
    if stopped and trouble is not None:
        trouble = Trouble.STOPPED
    if trouble is Trouble.MISSING and isinstance(request, Check | ListPage):  # not every server says what is missing
        trouble = Trouble.BUCKET_MISSING
    if trouble is None:
        return None
    why = "it was cut off before it had ended" if trouble is Trouble.STOPPED else str(error)
    return Failed(trouble, f"{type(request).__name__.lower()} {getattr(request, 'name', '')}".rstrip() + f": {why}")


def _open_objects(options: bytes, arena: Arena) -> Objects:
    return Objects(msgspec.msgpack.decode(options, type=S3Config), arena)


if __name__ == "__main__":
    serve(_open_objects)
