"""Benchmark of the codecs of stored chunks: how much they save and what that costs, beside bare calls.

One chunk of 2.5 MiB at a time, as a tier's child process has it: the stored form with its table, its
padding and its seal on the way in, straight into the frame on the way out. Bare calls compress the
same bytes by the same library into memory of their own. All take turns; medians are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lz4.block
import numpy as np
import zstandard

from flexkv_tiers.codec import CODEC_NONE, ChunkEntry
from flexkv_tiers.codec.auto import TRIALS_FIRST, AutoChoice
from flexkv_tiers.codec.plan import CodecNumber, Order
from flexkv_tiers.codec.sections import decode_chunk, encode_chunk
from scripts.bench_parts.row import row

CHUNK_BYTES = 5 << 19
TURNS = 15
GIB = 1 << 30
RATIO_MIN = {("bf16", "planes"): 1.4, ("fp8", "zstd"): 1.15}
CPU_AGAINST_BARE_MAX = 1.25
CANDIDATES = (CodecNumber.LZ4, CodecNumber.ZSTD, CodecNumber.PLANES)
CHECKSUM = bytes(16)


@dataclass(slots=True)
class Way:
    """One way to store one kind of bytes, and what it took in each turn: (wall, CPU) seconds."""

    encode: Callable[[], object]
    decode: Callable[[], object]
    stored_bytes: int
    encoding: list[tuple[float, float]] = field(default_factory=list)
    decoding: list[tuple[float, float]] = field(default_factory=list)

    def turn(self) -> None:
        for work, took in ((self.encode, self.encoding), (self.decode, self.decoding)):
            wall, cpu = time.perf_counter(), time.thread_time()
            work()
            took.append((time.perf_counter() - wall, time.thread_time() - cpu))

    @property
    def ratio(self) -> float:
        return CHUNK_BYTES / self.stored_bytes

    @property
    def cpu_s(self) -> float:
        """In and out again."""
        return sum(statistics.median(cpu for _, cpu in took) for took in (self.encoding, self.decoding))

    def rows(self, name: str, ratio_min: float | None = None) -> list[dict[str, Any]]:
        result = [row(f"codec: {name}, ratio", self.ratio, "×", least=ratio_min)]
        for where, took in (("in", self.encoding), ("out", self.decoding)):
            wall, cpu = (statistics.median(seconds) for seconds in zip(*took, strict=True))
            result.append(row(f"codec: {name}, {where}", CHUNK_BYTES / wall / 1e9, "GB/s"))
            result.append(row(f"codec: {name}, {where}, CPU", cpu / CHUNK_BYTES * GIB, "s/GiB"))
        return result


def rows() -> list[dict[str, Any]]:
    """Each codec on each kind of bytes, beside the bare library where it is the right one."""
    result = []
    for kind, raw in kinds().items():
        ways = {codec.name.lower(): _ours(raw, codec) for codec in CANDIDATES}
        bare = {"lz4": _bare_lz4(raw), "zstd": _bare_zstd(raw)}
        for _ in range(TURNS):
            for way in (*ways.values(), *bare.values()):
                way.turn()
        for name, way in bare.items():
            result += way.rows(f"{kind}, bare {name}")
        for name, way in ways.items():
            result += way.rows(f"{kind}, {name}", RATIO_MIN.get((kind, name)))
        against, most = ways["zstd"].cpu_s / bare["zstd"].cpu_s, CPU_AGAINST_BARE_MAX if kind == "bf16" else None
        result.append(row(f"codec: {kind}, zstd, CPU against bare", against, "×", most=most))
        result.append(_chosen(kind, raw, ways))
    return result


def _ours(raw: memoryview, codec: CodecNumber) -> Way:
    orders = [Order(CHUNK_BYTES, (codec,))]
    room, frame = memoryview(bytearray(CHUNK_BYTES)), memoryview(bytearray(CHUNK_BYTES))
    form, _ = encode_chunk(raw, CHECKSUM, orders, room)
    entry = ChunkEntry(4096, form.stored_bytes, CHUNK_BYTES, form.codec, CHECKSUM)
    stored = raw if form.codec == CODEC_NONE else memoryview(bytes(room[: entry.room_bytes]))
    way = Way(
        lambda: encode_chunk(raw, CHECKSUM, orders, room), lambda: decode_chunk(entry, stored, frame), entry.room_bytes
    )
    way.decode()
    assert frame == raw
    return way


def _bare_lz4(raw: memoryview) -> Way:
    stored = lz4.block.compress(raw, store_size=False)
    return Way(
        lambda: lz4.block.compress(raw, store_size=False),
        lambda: lz4.block.decompress(stored, uncompressed_size=CHUNK_BYTES),
        len(stored),
    )


def _bare_zstd(raw: memoryview) -> Way:
    compressor, decompressor = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    stored = compressor.compress(raw)
    return Way(lambda: compressor.compress(raw), lambda: decompressor.decompress(stored), len(stored))


def _chosen(kind: str, raw: memoryview, ways: dict[str, Way]) -> dict[str, Any]:
    """What the automatic choice makes of it after its first trials."""
    choice, room = AutoChoice(CANDIDATES), memoryview(bytearray(CHUNK_BYTES))
    for _ in range(TRIALS_FIRST):
        _, measures = encode_chunk(raw, CHECKSUM, [Order(CHUNK_BYTES, choice.next_codecs())], room)
        for measure in measures:
            choice.note(measure)
    name = choice.decision.name.lower()
    return row(f"codec: {kind}, auto takes {name}, ratio", ways[name].ratio if name in ways else 1.0, "×")


def kinds() -> dict[str, memoryview]:
    """Bytes as KV caches have them, and the extremes. Normal values, channels of unequal size."""
    chance = np.random.default_rng(1)
    channels = np.exp(chance.standard_normal(128) * 0.7).astype(np.float32)
    values = (chance.standard_normal((CHUNK_BYTES // 128, 128)).astype(np.float32) * channels).ravel()
    bfloat16 = (values[: CHUNK_BYTES // 2].view(np.uint32) >> 16).astype(np.uint16)
    return {
        "bf16": memoryview(bfloat16.tobytes()),
        "fp8": memoryview(_fp8(values).tobytes()),
        "zeros": memoryview(bytes(CHUNK_BYTES)),
        "random": memoryview(chance.bytes(CHUNK_BYTES)),
    }


def _fp8(values: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """E4M3: sign, 4 bits of exponent (bias 7), 3 of mantissa; truncated, small ones to zero."""
    scaled = (values * (64 / np.abs(values).max())).view(np.uint32)
    exponent = ((scaled >> 23) & 0xFF).astype(np.int32) - 127 + 7
    code = (scaled >> 24 & 0x80) | (np.clip(exponent, 0, 15).astype(np.uint32) << 3) | (scaled >> 20 & 7)
    return np.where(exponent > 0, code, 0).astype(np.uint8)
