"""The SSD tier: checksummed records in preallocated segment files of one directory.

`store` is the tier; `slots` decides where records go; `directory` owns marker, lock and file names;
`recovery` reads headers at start. `flexkv_tiers.diskio` moves the bytes.
"""

from flexkv_tiers.ssd.store import SsdStore

__all__ = ["SsdStore"]
