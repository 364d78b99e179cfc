"""The SSD tier: an append-only log of checksummed records, striped over directories.

`store` is the tier. `log` decides where records go, with `table` (locations), `budget` (write amplification),
`victims` (what is reclaimed) and `sizes`; all of these are pure, and so is `stripe_set` (what belongs together).
`format` is bytes there and back. `stripe`, `records`, `roller`, `reclaim`, `scan`, `recovery` and `opening` move bytes;
`directory` owns marker, lock and file names; `verify` checks directories offline, `inspection` whether a start would
work.
"""

from flexkv_tiers.ssd.store import SsdStore

__all__ = ["SsdStore"]
