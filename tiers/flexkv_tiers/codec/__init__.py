"""The form of stored blocks: a record's header, what its checksums cover, and how chunks are compressed.

`envelope` is the header, beside which everything else is optional: a store that compresses nothing
needs no more than what is listed here.
"""

from flexkv_tiers.codec.envelope import (
    CHECKSUM_BYTES,
    CODEC_NONE,
    CODEC_SECTIONS,
    HEADER_BYTES,
    HEADER_MAGIC,
    NO_SALT,
    SALT_BYTES,
    Buffer,
    ChunkEntry,
    Header,
    Stored,
    chunk_checksum,
    chunk_prefix,
    may_be_header,
    pack_header,
    parse_header,
)

__all__ = [
    "CHECKSUM_BYTES",
    "CODEC_NONE",
    "CODEC_SECTIONS",
    "HEADER_BYTES",
    "HEADER_MAGIC",
    "NO_SALT",
    "SALT_BYTES",
    "Buffer",
    "ChunkEntry",
    "Header",
    "Stored",
    "chunk_checksum",
    "chunk_prefix",
    "may_be_header",
    "pack_header",
    "parse_header",
]
