"""Blocks, their copies, and the lists copies stand in.

A block exists while it has a copy in any tier, whatever that copy's state:

    FILLING ──► READY ──► (gone)
       └─────► DROPPED ──► (gone)      a fill that failed while a reader still needs the landed chunks

`present` is a mask of chunks whose bytes are there and verified; the other chunks of a FILLING copy
are being filled. Only DRAM may hold part of a block; copies on SSD and S3 are whole.

There are a million of these, and eight bytes more in each are sixteen: so they are slotted, what is the
same for all copies of a tier is its class's, what few blocks have is kept beside them by the index, a
DRAM place is packed bytes instead of a tuple of int objects, and list links live in the copy itself.
Nothing here decides anything.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from flexkv_py.core.messages import DRAM, S3, SSD, BlockName, NamespaceSpec, Tier
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest
from flexkv_py.rows.grants import Request, chunks_in
from flexkv_py.tenants.owner import Owner


class CopyState(Enum):
    """See the picture above."""

    FILLING = 1
    READY = 2
    DROPPED = 3


FILLING, READY, DROPPED = CopyState.FILLING, CopyState.READY, CopyState.DROPPED
"""By name, for the same reason as tiers: see `words`."""


class Rank(Enum):
    """When a block leaves, beside others of its tenant; LOW goes below only once used again, HIGH whatever it is."""

    LOW = 1
    NORMAL = 2
    HIGH = 3


@dataclass(frozen=True, slots=True)
class Rule:
    """What a save's hints said of a block. `skip_below`: never written below DRAM."""

    skip_below: bool = False
    rank: Rank = Rank.NORMAL


PLAIN = Rule()
"""No hints: as the admission rule says."""


class Copy:
    """One block in one tier. A reader pins the whole copy."""

    __slots__ = ("block", "mark", "newer", "older", "place", "queue", "readers", "state")
    tier: ClassVar[Tier]

    def __init__(self, block: Block, place: bytes | int, state: CopyState = FILLING) -> None:
        self.block = block
        self.place = place  # DRAM: frames, packed u32; below: the tier's own location
        self.state = state
        self.readers = 0
        self.mark = 0  # its policy's own
        self.queue: CopyList | None = None  # READY and unpinned copies stand in exactly one list of their shelf
        self.older: Copy | None = None
        self.newer: Copy | None = None

    @property
    def stands_ready(self) -> bool:
        """Whether it stands in order, and may go at once."""
        return self.queue is not None and self.queue.spare

    @property
    def frames(self) -> tuple[int, ...]:
        """Frame numbers of a DRAM copy, by chunk."""
        assert isinstance(self.place, bytes)
        return self.block.index.frame_numbers.unpack(self.place)

    @property
    def location(self) -> int:
        """Where the tier keeps the record of a copy below DRAM."""
        assert isinstance(self.place, int)
        return self.place

    def __repr__(self) -> str:
        key = self.block.key.hex()[:8]
        return f"<{key}@{self.tier.name} {self.state.name} readers={self.readers}>"


class DramCopy(Copy):
    """The one kind of copy that may be there in part; READY, but not whole, only while the block is whole below."""

    __slots__ = ("filling", "present")
    tier = Tier.DRAM

    def __init__(self, block: Block, frames: bytes) -> None:
        super().__init__(block, frames)
        self.present = 0  # mask of chunks
        self.filling = block.index.full_mask  # mask of chunks; those in neither mask have no frame

    @property
    def lacks(self) -> int:
        """Chunks (mask) that are neither there nor on their way."""
        return self.block.index.full_mask & ~(self.present | self.filling)

    def packed(self, chunks: int) -> bytes:
        """The frames of these chunks (mask)."""
        assert isinstance(self.place, bytes)
        if chunks == self.block.index.full_mask:
            return self.place
        return array("I", [self.frames[chunk] for chunk in chunks_in(chunks)]).tobytes()

    def fill(self, chunks: int, frames: bytes) -> None:
        """These chunks (mask) are being filled from now on, in these frames."""
        assert chunks & ~self.lacks == 0
        if self.queue is not None:
            self.queue.remove(self)
        self.state = FILLING
        assert isinstance(self.place, bytes)
        numbers = array("I", self.place)
        for chunk, frame in zip(chunks_in(chunks), array("I", frames), strict=True):
            numbers[chunk] = frame
        self.place = numbers.tobytes()
        self.filling |= chunks


class SsdCopy(Copy):
    """A record of the SSD tier."""

    __slots__ = ()
    tier = Tier.SSD


class S3Copy(Copy):
    """A record of the S3 tier."""

    __slots__ = ()
    tier = Tier.S3


RECORD_TYPES: dict[Tier, type[Copy]] = {Tier.SSD: SsdCopy, Tier.S3: S3Copy}
"""What a copy in a tier below DRAM is."""


class CopyList:
    """Copies from oldest to newest; every operation is O(1). The links are the copies' own."""

    __slots__ = ("count", "hand", "newest", "oldest", "spare")

    def __init__(self, *, spare: bool = False) -> None:
        self.spare = spare  # what stands here may go at once
        self.count = 0
        self.hand: Copy | None = None  # where somebody stands who walks the list in slices: moves on when that one goes
        self.oldest: Copy | None = None
        self.newest: Copy | None = None

    def push_newest(self, copy: Copy) -> None:
        self._insert(copy, self.newest, None)

    def push_oldest(self, copy: Copy) -> None:
        self._insert(copy, None, self.oldest)

    def _insert(self, copy: Copy, older: Copy | None, newer: Copy | None) -> None:
        assert copy.queue is None
        assert copy.readers == 0
        copy.queue, copy.older, copy.newer = self, older, newer
        if older is None:
            self.oldest = copy
        else:
            older.newer = copy
        if newer is None:
            self.newest = copy
        else:
            newer.older = copy
        self.count += 1

    def remove(self, copy: Copy) -> None:
        assert copy.queue is self
        older, newer = copy.older, copy.newer
        if copy is self.hand:
            self.hand = newer
        if older is None:
            self.oldest = newer
        else:
            older.newer = newer
        if newer is None:
            self.newest = older
        else:
            newer.older = older
        copy.older = copy.newer = copy.queue = None
        self.count -= 1


class Block:
    """One key of one index, with its copies and its place in the chain."""

    __slots__ = ("children", "dram", "holds", "index", "key", "linked", "parent", "s3", "ssd", "uses")

    def __init__(self, key: BlockKey, parent: BlockKey, index: Index) -> None:
        self.key = key
        self.parent = parent
        self.index = index
        self.dram: DramCopy | None = None
        self.ssd: Copy | None = None
        self.s3: Copy | None = None
        self.children: Block | dict[Block, None] | None = None  # mostly one: then no dict is paid for
        self.linked = False  # READY somewhere, and so is every ancestor: this block may be matched
        self.holds = 0  # leases and demands that need the block, in whatever tier
        self.uses = 0  # saved, loaded or met again: what admission counts

    @property
    def rule(self) -> Rule:
        """What the save's hints said."""
        return self.index.rules.get(self, PLAIN)

    @rule.setter
    def rule(self, rule: Rule) -> None:
        if rule is not PLAIN and rule != PLAIN:
            self.index.rules[self] = rule
        elif self.index.rules:
            self.index.rules.pop(self, None)

    @property
    def needed(self) -> bool:
        """Whether somebody counts on the block, in whatever tier."""
        attached = self.index.attached
        return self.holds > 0 or bool(attached and self.key in attached)

    def copy_in(self, tier: Tier) -> Copy | None:
        if tier is DRAM:
            return self.dram
        return self.ssd if tier is SSD else self.s3

    def set_copy(self, tier: Tier, copy: Copy | None) -> None:
        if tier is DRAM:
            assert copy is None or isinstance(copy, DramCopy)
            self.dram = copy
        elif tier is SSD:
            self.ssd = copy
        else:
            assert tier is S3
            self.s3 = copy

    def copies(self) -> list[Copy]:
        """Copies from the fastest tier down, whatever their state."""
        return [copy for copy in (self.dram, self.ssd, self.s3) if copy is not None]

    @property
    def ready(self) -> bool:
        """Some tier holds the whole block, verified."""
        dram, ssd, s3 = self.dram, self.ssd, self.s3
        return (
            (dram is not None and dram.state is READY)
            or (ssd is not None and ssd.state is READY)
            or (s3 is not None and s3.state is READY)
        )

    @property
    def name(self) -> BlockName:
        return BlockName(self.index.namespace, self.index.shard, self.key, self.parent)


class Index:
    """All blocks of one namespace and shard.

    `awaiting` has the children of parents that are not (or no longer) here, by the parent's key: they
    are orphans, and are adopted when the parent returns.
    """

    def __init__(self, namespace: NamespaceDigest, shard: int, owner: Owner[Any]) -> None:
        self.namespace = namespace
        self.shard = shard
        self.owner = owner  # the tenant it belongs to
        self.shelves = owner.shelves  # where its copies stand, by tier
        self.used_bytes = [0] * len(Tier)  # its part of what the owner uses, by tier
        self.spec: NamespaceSpec | None = None  # unknown until a session or a record header tells
        self.chunk_count = 0  # chunks, and so frames, of one block
        self.full_mask = 0  # all chunks of a block
        self.frame_pages = 0  # 4 KiB pages of one frame
        self.frames_bytes = 0  # of DRAM that one whole block takes
        self.frame_numbers = struct.Struct("")  # the packed frames of one block
        self.record_bytes = 0  # one size for all records of an index; 0 until known
        self.blocks: dict[BlockKey, Block] = {}
        self.awaiting: dict[BlockKey, Block | dict[Block, None]] = {}
        self.attached: dict[BlockKey, tuple[Request[DramCopy, Index], ...]] = {}  # running requests by what they read
        self.rules: dict[Block, Rule] = {}  # exactly the blocks whose rule is not PLAIN
        self.closed = False  # reset: every copy goes as soon as nothing reads it

    def introduce(self, spec: NamespaceSpec) -> None:
        """The first session of a namespace, or a record header, says how its blocks are cut."""
        if self.spec is not None:
            return
        self.spec = spec
        self.chunk_count = len(spec.chunk_bytes)
        self.full_mask = (1 << self.chunk_count) - 1
        self.frame_pages = spec.frame_bytes // ALIGN_BYTES
        self.frames_bytes = self.chunk_count * spec.frame_bytes
        self.frame_numbers = struct.Struct(f"={self.chunk_count}I")

    def charge(self, tier: Tier, more_bytes: int) -> None:
        """This much more (or less) of a tier is used by blocks of this index."""
        self.used_bytes[tier] += more_bytes
        shelf = self.shelves[tier]
        shelf.used_bytes += more_bytes
        assert shelf.used_bytes >= 0
        if shelf.watched and more_bytes > 0:
            shelf.grown()

    def add(self, key: BlockKey, parent: BlockKey) -> Block:
        """A block that was in no tier; it adopts its waiting children."""
        assert key not in self.blocks
        parent_block = self.blocks.get(parent)
        block = Block(key, parent if parent_block is None else parent_block.key, self)
        self.blocks[key] = block
        if self.awaiting:
            block.children = self.awaiting.pop(key, None)
        if parent_block is not None:
            children = parent_block.children
            parent_block.children = block if children is None else _with_child(children, block)
        elif parent != ROOT:
            self.awaiting[parent] = _with_child(self.awaiting.get(parent), block)
        return block

    def remove(self, block: Block) -> None:
        """A block that has no copy any more; its children wait for it to return."""
        assert block.dram is None
        assert block.ssd is None
        assert block.s3 is None
        del self.blocks[block.key]
        self.rules.pop(block, None)
        if block.children is not None:
            self.awaiting[block.key] = block.children
            block.children = None
        parent_block = self.blocks.get(block.parent)
        if parent_block is not None:
            parent_block.children = _without_child(parent_block.children, block)
        elif block.parent != ROOT:
            left = _without_child(self.awaiting[block.parent], block)
            if left is None:
                del self.awaiting[block.parent]
            else:
                self.awaiting[block.parent] = left


def children_of(children: Block | dict[Block, None] | None) -> tuple[Block, ...]:
    """A snapshot, in order of arrival."""
    if children is None:
        return ()
    return tuple(children) if isinstance(children, dict) else (children,)


def _with_child(children: Block | dict[Block, None] | None, child: Block) -> Block | dict[Block, None]:
    if children is None:
        return child
    if not isinstance(children, dict):
        children = {children: None}
    children[child] = None
    return children


def _without_child(children: Block | dict[Block, None] | None, child: Block) -> Block | dict[Block, None] | None:
    if isinstance(children, dict):
        del children[child]
        return children or None
    assert children is child
    return None
