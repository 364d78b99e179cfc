"""What a run fails with."""

from __future__ import annotations

from flexkv_py.core.messages import BlockName


class Violation(AssertionError):
    """A promise was broken; `block` is the one concerned, where there is one."""

    def __init__(self, what: str, block: BlockName | None = None) -> None:
        super().__init__(what if block is None else f"{what} (key {block.key.hex()[:12]}, shard {block.shard})")
        self.block = block
