"""The S3 tier: an object per block or pack of blocks, moved by byte workers.

`store` is the tier as the daemon sees it, `bucket` what it asks, `catalogue` what it knows to be there,
`listing` how it finds out, `packing` and `packs` how small blocks share an object, `objects` what runs
in the byte worker, `messages` what the two say, `names` what objects are called, `faults` what an error
means, `health` when to try again.
"""

from flexkv_tiers.s3.config import S3Config
from flexkv_tiers.s3.store import S3Store

__all__ = ["S3Config", "S3Store"]
