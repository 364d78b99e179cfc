"""One S3 client at work in a process of its own: uploads, or downloads into memory that is there already.

`python -m scripts.bench_parts.s3_clients CLIENT ENDPOINT BUCKET PREFIX` says when it is ready, then
runs each line it reads (`put`, `keep` or `get`, then BYTES and COUNT) and answers with one line of JSON.
What is put has a new name every time; what is kept is what `get` reads.
All clients use CONNECTIONS connections and the same number of processes for the bytes: one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, Protocol

from flexkv_py.core.messages import BlockName
from flexkv_py.keys import ROOT, NamespaceDigest, key_of_hash
from flexkv_tiers.base import FrameSpan
from flexkv_tiers.codec import HEADER_BYTES, chunk_checksum
from flexkv_tiers.codec.plan import Section
from flexkv_tiers.codec.pool import CodecPool, TierCodec
from flexkv_tiers.memory import Arena

CONNECTIONS = 4
CHUNK_BYTES_MIN = 256 * 1024
CHUNKS = 8
ARENA_BYTES = 64 << 20


class Runs(Protocol):
    """A client under test; each method returns the seconds that each of `count` objects took."""

    def put(self, object_bytes: int, count: int, *, keep: bool) -> list[float]: ...

    def get(self, object_bytes: int, count: int) -> list[float]: ...


class Ours:
    """S3Store over an arena: byte worker, checksums and headers included."""

    def __init__(self, endpoint_url: str, bucket: str, prefix: str) -> None:
        from flexkv_tiers.s3 import S3Config, S3Store  # noqa: PLC0415 - each client imports its own

        config = S3Config(
            bucket, prefix, endpoint_url=endpoint_url, threads=CONNECTIONS + 2, sign_payload=False, pack_bytes=0
        )
        self._arena = Arena(ARENA_BYTES, 1, huge_pages=False)
        self._arena.view(0, ARENA_BYTES)[:] = self._data() * (ARENA_BYTES // len(self._data()))
        self._loop = asyncio.new_event_loop()
        self._codec = self._loop.run_until_complete(self._start_codec())
        self._store = S3Store(config, self._arena, codec=self._codec)
        self._loop.run_until_complete(self._store.start())
        self._secret = os.urandom(28)
        self._puts = 0

    def _data(self) -> bytes:
        return os.urandom(1 << 20)

    async def _start_codec(self) -> TierCodec | None:
        return None

    def put(self, object_bytes: int, count: int, *, keep: bool) -> list[float]:
        self._puts += not keep
        name = f"{object_bytes} {'' if keep else self._puts}"
        return self._run(
            count,
            lambda number, turn: self._write(number, self._block(turn, name, object_bytes, keep=keep), object_bytes),
        )

    def get(self, object_bytes: int, count: int) -> list[float]:
        return self._run(count, lambda number, _turn: self._read(number, object_bytes))

    async def _write(self, number: int, block: BlockName, object_bytes: int) -> None:
        spans = self._spans(number, *_cut(object_bytes))
        if self._codec is not None:
            self._codec.introduce(block.namespace, tuple((Section(span.length, 2, "kv"),) for span in spans))
        for at, span in enumerate(spans):  # as a save does, once in a block's life
            checksum = chunk_checksum(block.key, at, self._arena.view(span.frame, span.length))
            self._arena.set_checksum(span.frame, checksum)
        await self._store.write(block, spans)

    async def _read(self, number: int, object_bytes: int) -> None:
        spans = self._spans(number, *_cut(object_bytes))
        block = self._block(number, f"{object_bytes} ", object_bytes, keep=True)
        async with aclosing(self._store.read(block, 0, spans)) as landed:
            async for _ in landed:
                pass

    def _run(self, count: int, work: Callable[[int, int], Any]) -> list[float]:
        times: list[float] = []

        async def connection(number: int) -> None:
            for turn in range(number, count, CONNECTIONS):
                begun = time.perf_counter()
                await work(number, turn)
                times.append(time.perf_counter() - begun)

        async def together() -> None:
            await asyncio.gather(*(connection(number) for number in range(CONNECTIONS)))

        self._loop.run_until_complete(together())
        return times

    def _spans(self, number: int, chunk_bytes: int, chunks: int) -> list[FrameSpan]:
        first = number * (ARENA_BYTES // CONNECTIONS // 4096)
        return [FrameSpan(first + at * (chunk_bytes // 4096), chunk_bytes) for at in range(chunks)]

    def _block(self, turn: int, name: str, object_bytes: int, *, keep: bool) -> BlockName:
        space = NamespaceDigest(self._secret + object_bytes.to_bytes(4, "little"))
        return BlockName(space, int(keep), key_of_hash(space, ROOT, f"{turn} {name}".encode()), ROOT)


class OursAuto(Ours):
    """The same with the default codec, on numbers such as models have, introduced as what they are."""

    def _data(self) -> bytes:
        from scripts.bench_parts.codec import kinds  # noqa: PLC0415 - brings numpy

        return bytes(kinds()["bf16"][: 2 << 20])

    async def _start_codec(self) -> TierCodec | None:
        from flexkv_tiers.codec.choice import CodecChooser  # noqa: PLC0415

        pool = CodecPool(self._arena, processes=1, scratch_bytes=ARENA_BYTES, timeout_s=30.0)
        await pool.start()
        return TierCodec(pool, CodecChooser("auto"))


class Threads(ABC):
    """A client that is called from threads; `one_put` and `one_get` move one object."""

    puts = 0

    def put(self, object_bytes: int, count: int, *, keep: bool) -> list[float]:
        self.puts += not keep
        start = f"1/{object_bytes}" if keep else f"0/{object_bytes}-{self.puts}"
        return self._run(count, lambda _number, turn: self.one_put(f"{start}-{turn}", object_bytes))

    def get(self, object_bytes: int, count: int) -> list[float]:
        return self._run(count, lambda number, _turn: self.one_get(number, f"1/{object_bytes}-{number}", object_bytes))

    @abstractmethod
    def one_put(self, name: str, object_bytes: int) -> None: ...

    @abstractmethod
    def one_get(self, number: int, name: str, object_bytes: int) -> None: ...

    def _run(self, count: int, work: Callable[[int, int], None]) -> list[float]:
        times: list[float] = []

        def connection(number: int) -> None:
            for turn in range(number, count, CONNECTIONS):
                begun = time.perf_counter()
                work(number, turn)
                times.append(time.perf_counter() - begun)

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(connection, range(CONNECTIONS)))
        return times


class Boto3(Threads):
    """boto3 tuned: unsigned payloads, no second checksums, a connection per thread, `readinto`."""

    def __init__(self, endpoint_url: str, bucket: str, prefix: str) -> None:
        import boto3  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415

        self._bucket, self._prefix = bucket, prefix
        self._client = boto3.client(
            "s3",
            endpoint_url=endpoint_url,
            config=Config(
                max_pool_connections=CONNECTIONS,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"addressing_style": "path", "payload_signing_enabled": False},
            ),
        )
        self._data = bytes(os.urandom(1 << 20)) * 9
        self._buffers = [memoryview(bytearray(9 << 20)) for _ in range(CONNECTIONS)]

    def one_put(self, name: str, object_bytes: int) -> None:
        self._client.put_object(
            Bucket=self._bucket, Key=f"{self._prefix}/{name}", Body=self._data[: object_bytes + HEADER_BYTES]
        )

    def one_get(self, number: int, name: str, object_bytes: int) -> None:
        body = self._client.get_object(Bucket=self._bucket, Key=f"{self._prefix}/{name}")["Body"]
        view, at = self._buffers[number], 0
        while count := body.readinto(view[at:]):  # type: ignore[arg-type]  # the stubs ask for a file
            at += count
        assert at == object_bytes + HEADER_BYTES


class Obstore(Threads):
    """obstore: Rust, without the GIL; its answers are its own memory, copied into the buffer."""

    def __init__(self, endpoint_url: str, bucket: str, prefix: str) -> None:
        from obstore.store import S3Store  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

        self._prefix = prefix
        self._store = S3Store(
            bucket,
            endpoint=endpoint_url,
            access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
            secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
            region="us-east-1",
            virtual_hosted_style_request=False,
            unsigned_payload=True,
            client_options={"allow_http": True},
        )
        self._data = bytes(os.urandom(1 << 20)) * 9
        self._buffers = [memoryview(bytearray(9 << 20)) for _ in range(CONNECTIONS)]

    def one_put(self, name: str, object_bytes: int) -> None:
        data = self._data[: object_bytes + HEADER_BYTES]
        self._store.put(f"{self._prefix}/{name}", data, use_multipart=False)

    def one_get(self, number: int, name: str, object_bytes: int) -> None:
        data = self._store.get(f"{self._prefix}/{name}").bytes()
        self._buffers[number][: len(data)] = memoryview(data)
        assert len(data) == object_bytes + HEADER_BYTES


CLIENTS: dict[str, Callable[[str, str, str], Runs]] = {
    "ours": Ours,
    "ours, codec auto": OursAuto,
    "boto3": Boto3,
    "obstore": Obstore,
}


def _cut(object_bytes: int) -> tuple[int, int]:
    """Length and number of chunks, as the geometry cuts a block: eight, but none below 256 KiB."""
    chunks = max(1, min(CHUNKS, object_bytes // CHUNK_BYTES_MIN))
    return object_bytes // chunks // 4096 * 4096, chunks


def cpu_s() -> float:
    """CPU seconds of this process and its living children, to the nanosecond."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        children = [int(child) for child in file.read().split()]
    clocks = [~child << 3 | 2 for child in children]  # the kernel's name for another process's CPU clock
    return time.process_time() + sum(time.clock_gettime(clock) for clock in clocks)


def main() -> None:
    """Serve orders from the standard input."""
    name, *place = sys.argv[1:]
    client = CLIENTS[name](*place)
    print("ready", flush=True)
    for line in sys.stdin:
        what, object_bytes, count = line.split()
        before_s, begun = cpu_s(), time.perf_counter()
        if what == "get":
            times = client.get(int(object_bytes), int(count))
        else:
            times = client.put(int(object_bytes), int(count), keep=what == "keep")
        wall_s = time.perf_counter() - begun
        print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s() - before_s, "times_s": times}), flush=True)


if __name__ == "__main__":
    main()
