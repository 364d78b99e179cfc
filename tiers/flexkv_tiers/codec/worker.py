"""The child process that compresses for the tiers: between frames and scratch, both mapped as one arena.

Runs in the byte worker only: `python -m flexkv_tiers.codec.worker`. `pool` is the daemon's side.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from flexkv_tiers.base import TierFault
from flexkv_tiers.byteworkers.child import Call, serve
from flexkv_tiers.codec.envelope import ChunkEntry
from flexkv_tiers.codec.plan import Decode, Encode, Encoded, Unreadable, Work
from flexkv_tiers.codec.record import decode_into, encode_chunks
from flexkv_tiers.memory import Arena


class CodecHandler:
    """Encodes and decodes, as the byte worker's handler. A call is short, so none is ever stopped half-way."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._decoder = msgspec.msgpack.Decoder(Work)
        self._encoder = msgspec.msgpack.Encoder()

    def __call__(self, raw: bytes, _call: Call) -> Iterator[bytes]:
        """Run one request. A decode that ends without a reply has filled its frame."""
        work = self._decoder.decode(raw)
        if isinstance(work, Encode):
            yield self._encoder.encode(self._encode(work))
            return
        try:
            self._decode(work)
        except TierFault as fault:
            yield self._encoder.encode(Unreadable(fault.detail))

    def _encode(self, work: Encode) -> Encoded:
        chunks = [self._arena.view(frame, length) for frame, length in work.chunks]
        scratch = self._arena.view(work.scratch, sum(length for _, length in work.chunks))
        checksums = [self._arena.checksum(frame) for frame, _ in work.chunks]
        encoded = encode_chunks(chunks, checksums, work.orders, scratch)
        return Encoded([(form.codec, form.stored_bytes) for form in encoded.stored], encoded.measures)

    def _decode(self, work: Decode) -> None:
        entry = ChunkEntry(0, work.stored_bytes, work.raw_bytes, work.codec, work.checksum)
        stored = self._arena.view(work.scratch, entry.room_bytes)
        decode_into(self._arena.view(work.frame, work.raw_bytes), work.key, work.chunk, entry, stored)


def _open_handler(_options: bytes, arena: Arena) -> CodecHandler:
    return CodecHandler(arena)


if __name__ == "__main__":
    serve(_open_handler)
