"""S3 with a codec: what lies in the bucket is smaller, and comes back the same, from any chunk on."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

from flexkv_tiers.base import FrameSpan
from flexkv_tiers.codec import CODEC_NONE, CODEC_SECTIONS, chunk_checksum, parse_header
from flexkv_tiers.s3.names import object_name
from tests.tiers.contract import Frames, block
from tests.tiers.s3_backing import CompressingStore, patient, shared_server
from tests.tiers.test_codec_chunks import bfloat16

LENGTHS = (1 << 20, 64 << 10, 1 << 20)


def test_auto_stores_numbers_in_planes_and_noise_as_it_is(tmp_path: Path) -> None:
    """Numbers are stored in planes, noise as it is; the bucket holds what the header says, and reads give it back."""
    frames, config = Frames(), patient(tmp_path.name)
    name = block(1)
    contents = [bfloat16(LENGTHS[0]), random.Random(3).randbytes(LENGTHS[1]), bfloat16(LENGTHS[2], 2)]
    spans = frames.take(LENGTHS)
    for number, (span, raw) in enumerate(zip(spans, contents, strict=True)):
        frames.arena.view(span.frame, span.length)[:] = raw
        frames.arena.set_checksum(span.frame, chunk_checksum(name.key, number, raw))

    async def scene() -> None:
        store = CompressingStore(config, frames.arena, "auto")
        try:
            await store.start()
            location = await store.write(name, spans)
            target = frames.take(LENGTHS)
            assert [chunk async for chunk in store.read(name, location, target)] == [0, 1, 2]
            assert frames.bytes_of(target) == contents
        finally:
            await store.close()

    asyncio.run(scene())
    client = shared_server().client()
    raw = client.get_object(Bucket=config.bucket, Key=object_name(config.prefix, name))["Body"].read()
    client.close()
    header = parse_header(raw[:4096])
    assert header.record_bytes == len(raw) < 0.75 * sum(LENGTHS)
    assert [entry.codec for entry in header.chunks] == [CODEC_SECTIONS, CODEC_NONE, CODEC_SECTIONS]
    frames.arena.close()


def test_a_block_stored_by_another_codec_is_present(tmp_path: Path) -> None:
    """Whoever comes second, with whichever codec, sends nothing and reads what is there; other content replaces it."""
    frames, client, name = Frames(), shared_server().client(), block(1)
    config = replace(patient(tmp_path.name), pack_bytes=0, processes=1)

    def filled(seed: int) -> list[FrameSpan]:
        [span] = spans = frames.take(LENGTHS[:1])
        raw = bfloat16(LENGTHS[0], seed)
        frames.arena.view(span.frame, span.length)[:] = raw
        frames.arena.set_checksum(span.frame, chunk_checksum(name.key, 0, raw))
        return spans

    async def life(codec: str, seed: int) -> tuple[int, object]:
        store = CompressingStore(config, frames.arena, codec)
        try:
            await store.start()
            spans, target = filled(seed), frames.take(LENGTHS[:1])
            location = await store.write(name, spans)
            assert [chunk async for chunk in store.read(name, location, target)] == [0]
            assert frames.bytes_of(target) == frames.bytes_of(spans)
            status = store.status()
            assert (
                status["bytes"]
                == client.head_object(Bucket="flexkv", Key=object_name(config.prefix, name))["ContentLength"]
            )
            return status["uploads_present"], status["bytes"]
        finally:
            await store.close()

    _, small_bytes = asyncio.run(life("auto", 1))
    assert asyncio.run(life("none", 1)) == (1, small_bytes)
    present, bytes_of_other = asyncio.run(life("none", 2))
    assert (present, bytes_of_other) == (0, 4096 + LENGTHS[0])
    assert asyncio.run(life("auto", 2)) == (1, bytes_of_other)
    client.close()
    frames.arena.close()
