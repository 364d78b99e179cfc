"""The configured tiers below DRAM, each with its limits.

Owns which store is made of which table; the stores own everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flexkv_py.core.messages import Tier
from flexkv_tiers.base import StoreListener, TierStore
from flexkv_tiers.memory import Arena
from flexkvd.config import Config, S3Table, SsdTable
from flexkvd.executor import TierLimits

if TYPE_CHECKING:
    from flexkv_tiers.s3 import S3Config

BACKSTOP_S = 5.0
"""The S3 store keeps its own deadlines; ours only catches a store that does not."""

SIGN_PAYLOAD = {"auto": None, "always": True, "never": False}

Stores = dict[Tier, tuple[TierStore, TierLimits]]


def make_stores(config: Config, arena: Arena, listener_for: Callable[[Tier], StoreListener]) -> Stores:
    """Stores of the tiers that are configured, not started; each tells its own listener what it finds out."""
    stores: Stores = {}
    if config.ssd is not None:
        stores[Tier.SSD] = _ssd(config.ssd, arena, listener_for(Tier.SSD))
    if config.s3 is not None:
        stores[Tier.S3] = _s3(config.s3, arena, listener_for(Tier.S3).changed)
    return stores


def _ssd(table: SsdTable, arena: Arena, listener: StoreListener) -> tuple[TierStore, TierLimits]:
    from flexkv_tiers.diskio import open_disk_io  # noqa: PLC0415 - only a daemon with a disk tier needs it
    from flexkv_tiers.ssd import SsdStore  # noqa: PLC0415 - likewise

    store = SsdStore(
        [Path(each) for each in table.directory],
        table.bytes,
        arena,
        listener=listener,
        segment_bytes=table.segment_bytes,
        amplification_max=table.write_amplification_max,
        reserve_bytes=table.free_space_reserve_bytes or None,
        open_io=lambda directory: open_disk_io(directory, table.io, table.threads, table.direct_io),
    )
    return store, TierLimits(table.reads_in_flight_max, table.writes_in_flight_max, table.transfer_s_max)


def _s3(table: S3Table, arena: Arena, listener: Callable[[bool, str], None]) -> tuple[TierStore, TierLimits]:
    from flexkv_tiers.s3 import S3Store  # noqa: PLC0415 - only a daemon with an object tier needs it

    transfer_s_max = table.operation_timeout_s + table.connect_timeout_s + table.read_timeout_s + BACKSTOP_S
    return S3Store(s3_config(table), arena, listener), TierLimits(
        table.reads_in_flight_max, table.writes_in_flight_max, transfer_s_max
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
        processes=table.processes,
        threads=table.threads,
        connect_timeout_s=table.connect_timeout_s,
        read_timeout_s=table.read_timeout_s,
        operation_timeout_s=table.operation_timeout_s,
        retry_count_max=table.retry_count_max,
    )
