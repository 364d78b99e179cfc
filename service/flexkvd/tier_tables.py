"""Configuration of what lies below DRAM: the tables [ssd], [s3] and [codec]. Read by `config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flexkv_tiers.codec.choice import CODEC_NAMES
from flexkvd.toml_tables import Kind, key

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10
DAY_S = 86_400.0


@dataclass(frozen=True)
class SsdTable:
    """[ssd]: the disk tier."""

    directory: tuple[str, ...] = key(
        Kind.TEXTS,
        "Directory of the records, or a list of directories (one per disk) over which they are striped; "
        "one daemon at a time.",
        low=1,
        high=16,
    )
    bytes: int = key(Kind.SIZE, "Room the segment files may take, all directories together.", low=MIB, high=1 << 55)
    missing_directory: Literal["refuse", "forget"] = key(
        Kind.TEXT,
        "What a start does when a directory of the set is not there: refuse, or go on and never believe it again.",
        "refuse",
        choices=("refuse", "forget"),
    )
    segment_bytes: int = key(
        Kind.SIZE,
        "Size of a segment file; 0: chosen by capacity and first record. Fixed once a directory has segments.",
        0,
        high=64 * GIB,
    )
    write_amplification_max: float = key(
        Kind.NUMBER,
        "Bytes written to the disk per byte of new records: reclaim rewrites live records within it and lets go of "
        "the rest.",
        4.0,
        low=1,
        high=10,
    )
    free_space_reserve_bytes: int = key(
        Kind.SIZE,
        "Room of each file system that stays free; 0: a fiftieth of it, at most 1 GiB.",
        0,
        high=1 << 50,
    )
    endurance_bytes_per_day: int = key(
        Kind.SIZE,
        "Written per day at most, but for saves that insist on SSD; 0: no limit. A start begins with an hour's share.",
        0,
        high=1 << 60,
        live=True,
    )
    direct_io: bool = key(Kind.SWITCH, "Bypass the page cache where the file system allows.", True)
    threads: int = key(Kind.COUNT, "Threads that read and write.", 8, low=1, high=64)
    reads_in_flight_max: int = key(Kind.COUNT, "Blocks read at the same time.", 8, low=1, high=256)
    writes_in_flight_max: int = key(Kind.COUNT, "Blocks written at the same time.", 4, low=1, high=256)
    bytes_in_flight_max: int = key(
        Kind.SIZE,
        "Small blocks go beyond these numbers, as long as less than this is being read, or written.",
        8 * MIB,
        low=64 * KIB,
        high=GIB,
    )
    transfer_s_max: float = key(Kind.NUMBER, "A read or write that takes longer has failed.", 30.0, low=0.1, high=3600)
    io: Literal["auto", "io_uring", "threads", "aiofiles"] = key(
        Kind.TEXT,
        "Engine that moves the bytes; auto: io_uring where the kernel lets us, else threads. Status says which.",
        "auto",
        choices=("auto", "io_uring", "threads", "aiofiles"),
    )
    codec: str = key(
        Kind.TEXT,
        "How blocks are compressed; auto: each plane by what pays on its own blocks, or not at all.",
        "none",
        choices=CODEC_NAMES,
    )
    codec_planes: tuple[tuple[str, str], ...] = key(
        Kind.CHOICES, "Planes by name that are compressed otherwise.", (), choices=CODEC_NAMES
    )


@dataclass(frozen=True)
class S3Table:
    """[s3]: the object tier. Credentials come from the environment or the files that boto3 reads."""

    bucket: str = key(Kind.TEXT, "Bucket; it must exist.", low=1)
    prefix: str = key(Kind.TEXT, "Every object's name starts with this.", "flexkv")
    endpoint_url: str = key(Kind.TEXT, "Server, for other than AWS; empty: AWS.", "")
    region: str = key(Kind.TEXT, "Region the requests are signed for; empty: boto3's own.", "")
    addressing_style: Literal["auto", "path", "virtual"] = key(
        Kind.TEXT, "Where the bucket's name goes in a URL.", "auto", choices=("auto", "path", "virtual")
    )
    sign_payload: Literal["auto", "always", "never"] = key(
        Kind.TEXT,
        "Whether uploads are signed over their bytes too, which costs the most CPU of all; auto: only without TLS.",
        "auto",
        choices=("auto", "always", "never"),
    )
    ca_bundle: str = key(Kind.TEXT, "File of certificates to trust instead of the system's; empty: the system's.", "")
    sse: Literal["", "AES256", "aws:kms"] = key(
        Kind.TEXT,
        "What the server encrypts objects with; empty: the bucket's own default.",
        "",
        choices=("", "AES256", "aws:kms"),
    )
    sse_kms_key_id: str = key(Kind.TEXT, "Key of the server's key service, with sse = 'aws:kms'; empty: its own.", "")
    part_bytes: int = key(
        Kind.SIZE, "Blocks above this go up in parts of this size, side by side.", 64 * MIB, low=5 * MIB, high=4 * GIB
    )
    bytes: int = key(Kind.SIZE, "Room the objects may take; 0: no limit.", 0, high=1 << 60)
    pack_bytes: int = key(
        Kind.SIZE,
        "Small blocks written together become one object of about this size; 0: never.",
        8 * MIB,
        high=64 * MIB,
    )
    refresh_s: float = key(
        Kind.NUMBER, "How often to list what other daemons have written and deleted; 0: never.", 30.0, high=DAY_S
    )
    ttl_s: float = key(Kind.NUMBER, "Objects older than this are deleted; 0: none is.", 0.0, high=3650 * DAY_S)
    owner: bool = key(
        Kind.SWITCH, "Delete what bytes, ttl_s and eviction say; without it, this daemon only forgets it.", True
    )
    processes: int = key(Kind.COUNT, "Child processes that move the bytes.", 1, low=1, high=16)
    threads: int = key(Kind.COUNT, "Connections of each child.", 4, low=1, high=64)
    reads_in_flight_max: int = key(Kind.COUNT, "Objects read at the same time.", 16, low=1, high=1024)
    writes_in_flight_max: int = key(
        Kind.COUNT, "Blocks written at the same time; what comes together can share an object.", 64, low=1, high=1024
    )
    bytes_in_flight_max: int = key(
        Kind.SIZE,
        "Small blocks go beyond these numbers, as long as less than this is being read, or written.",
        16 * MIB,
        low=64 * KIB,
        high=GIB,
    )
    connect_timeout_s: float = key(Kind.NUMBER, "Longest wait for a connection.", 3.0, low=0.01, high=600)
    read_timeout_s: float = key(Kind.NUMBER, "Longest wait for the next bytes.", 10.0, low=0.01, high=600)
    silence_s: float = key(
        Kind.NUMBER,
        "After so long without any answer the server is asked whether it is there; as long again, and it is down. "
        "Longer for a slow server, by itself.",
        2.0,
        low=0.01,
        high=600,
    )
    operation_timeout_s: float = key(
        Kind.NUMBER, "Longest transfer of one object, all its retries together.", 30.0, low=0.01, high=3600
    )
    retry_count_max: int = key(Kind.COUNT, "Retries of one transfer.", 4, high=100)
    codec: str = key(
        Kind.TEXT,
        "How blocks are compressed; auto: each plane by what pays on its own blocks, or not at all.",
        "auto",
        choices=CODEC_NAMES,
    )
    codec_planes: tuple[tuple[str, str], ...] = key(
        Kind.CHOICES, "Planes by name that are compressed otherwise.", (), choices=CODEC_NAMES
    )


@dataclass(frozen=True)
class CodecTable:
    """[codec]: what compresses for the tiers that have it."""

    processes: int = key(Kind.COUNT, "Child processes that compress; none run where no tier does.", 1, low=1, high=16)
    scratch_bytes: int = key(
        Kind.SIZE,
        "Room for compressed bytes between DRAM and the tiers, at most a segment of DRAM. A larger block is not "
        "compressed.",
        64 * MIB,
        low=MIB,
        high=64 * GIB,
    )
