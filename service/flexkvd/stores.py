"""The configured tiers below DRAM, each with its limits.

Owns which store is made of which table; the stores own everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flexkv_py.core.messages import Tier
from flexkv_tiers.base import StoreListener, TierStore
from flexkv_tiers.codec.pool import TierCodec
from flexkv_tiers.memory import Arena
from flexkvd.codecs import Codecs
from flexkvd.config import Config
from flexkvd.executor import TierLimits
from flexkvd.tier_tables import S3Table, SsdTable

if TYPE_CHECKING:
    from flexkv_tiers.s3 import S3Config
    from flexkv_tiers.ssd.inspection import Wanted

BACKSTOP_S = 5.0
"""The S3 store keeps its own deadlines; ours only catches a store that does not."""

SIGN_PAYLOAD = {"auto": None, "always": True, "never": False}

Stores = dict[Tier, tuple[TierStore, TierLimits]]


def make_stores(config: Config, arena: Arena, codecs: Codecs, listener_for: Callable[[Tier], StoreListener]) -> Stores:
    """Stores of the tiers that are configured, not started; each tells its own listener what it finds out."""
    stores: Stores = {}
    if config.ssd is not None:
        stores[Tier.SSD] = _ssd(config.ssd, arena, codecs.of(Tier.SSD), listener_for(Tier.SSD))
    if config.s3 is not None:
        stores[Tier.S3] = _s3(config.s3, arena, codecs.of(Tier.S3), listener_for(Tier.S3))
    return stores


def ssd_wanted(table: SsdTable) -> Wanted:
    """The table in the tier's own words."""
    from flexkv_tiers.ssd.inspection import Wanted  # noqa: PLC0415 - as below

    return Wanted(
        [Path(each) for each in table.directory],
        table.bytes,
        segment_bytes=table.segment_bytes,
        reserve_bytes=table.free_space_reserve_bytes or None,
        forget_missing=table.missing_directory == "forget",
    )


def _ssd(
    table: SsdTable, arena: Arena, codec: TierCodec | None, listener: StoreListener
) -> tuple[TierStore, TierLimits]:
    from flexkv_tiers.diskio import open_disk_io  # noqa: PLC0415 - only a daemon with a disk tier needs it
    from flexkv_tiers.ssd import SsdStore  # noqa: PLC0415 - likewise

    wanted = ssd_wanted(table)
    store = SsdStore(
        wanted.directories,
        wanted.capacity_bytes,
        arena,
        listener=listener,
        segment_bytes=wanted.segment_bytes,
        forget_missing=wanted.forget_missing,
        amplification_max=table.write_amplification_max,
        reserve_bytes=wanted.reserve_bytes,
        open_io=lambda directory: open_disk_io(directory, table.io, table.threads, table.direct_io),
        codec=codec,
    )
    return store, TierLimits(
        table.reads_in_flight_max, table.writes_in_flight_max, table.bytes_in_flight_max, table.transfer_s_max
    )


def _s3(table: S3Table, arena: Arena, codec: TierCodec | None, listener: StoreListener) -> tuple[TierStore, TierLimits]:
    from flexkv_tiers.s3 import S3Store  # noqa: PLC0415 - only a daemon with an object tier needs it

    transfer_s_max = table.operation_timeout_s + table.connect_timeout_s + table.read_timeout_s + BACKSTOP_S
    return S3Store(s3_config(table), arena, listener, codec), TierLimits(
        table.reads_in_flight_max, table.writes_in_flight_max, table.bytes_in_flight_max, transfer_s_max
    )


def s3_config(table: S3Table) -> S3Config:
    """The table in the tier's own words."""
    from flexkv_tiers.s3 import S3Config  # noqa: PLC0415 - as above

    return S3Config(
        bucket=table.bucket,
        prefix=table.prefix,
        endpoint_url=table.endpoint_url,
        region=table.region,
        addressing_style=table.addressing_style,
        sign_payload=SIGN_PAYLOAD[table.sign_payload],
        ca_bundle=table.ca_bundle,
        sse=table.sse,
        sse_kms_key_id=table.sse_kms_key_id,
        part_bytes=table.part_bytes,
        processes=table.processes,
        threads=table.threads,
        connect_timeout_s=table.connect_timeout_s,
        read_timeout_s=table.read_timeout_s,
        silence_s=table.silence_s,
        operation_timeout_s=table.operation_timeout_s,
        retry_count_max=table.retry_count_max,
        bytes=table.bytes,
        pack_bytes=table.pack_bytes,
        refresh_s=table.refresh_s,
        ttl_s=table.ttl_s,
        owner=table.owner,
    )
