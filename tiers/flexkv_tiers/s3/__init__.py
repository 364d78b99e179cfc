"""The S3 tier: one object per block, moved by byte workers.

`store` is the tier as the daemon sees it, `objects` what runs in the byte worker, `messages` what the
two say, `names` what objects are called, `faults` what an error means, `health` when to try again.
"""

from flexkv_tiers.s3.config import S3Config
from flexkv_tiers.s3.store import S3Store

__all__ = ["S3Config", "S3Store"]
