"""What the store knows to be in the bucket: blocks that are objects of their own, and packs.

A sweep (one listing of the whole prefix, in pages, over as many rounds as it takes) moves whatever it
meets from `left` to `known`; what is left at its end is gone. Pure bookkeeping, no I/O; owned by the
store, changed by its writes, its drops and its listing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flexkv_py.core.messages import BlockName, FoundBlock, LostRecord
from flexkv_py.keys import KEY_BYTES, BlockKey, KeyRun, NamespaceDigest
from flexkv_tiers.base import FoundBatch
from flexkv_tiers.s3.messages import ListedGroup
from flexkv_tiers.s3.names import PackName
from flexkv_tiers.s3.packing import Directory
from flexkv_tiers.s3.packs import Pack, PackTable

SINGLE = 0
"""The location of every block that is an object of its own: its name says where it is."""

_Singles = dict[Directory, dict[bytes, int]]
"""By key ‖ parent: bytes of the object."""


class Catalogue:
    """See the module's docstring. `object_bytes` is what all objects take together."""

    def __init__(self) -> None:
        self.packs = PackTable()
        self.single_bytes = 0
        self.uploading: set[PackName] = set()
        self.resets: Counter[NamespaceDigest] = Counter()  # how often each was reset
        self._known: _Singles = {}
        self._left: _Singles = {}  # known before this sweep began, and not met by it yet
        self._packs_left: dict[PackName, None] = {}
        self._dropping: set[BlockName] = set()  # their deletes are on their way
        self._let_go: set[BlockName] = set()  # deleted since the last page was asked for, which may be older than that
        self._wiping: Counter[NamespaceDigest] = Counter()  # resets whose old objects may still be there
        self._wiped: set[NamespaceDigest] = set()  # since the last page was asked for

    @property
    def object_bytes(self) -> int:
        return self.packs.bytes + self.single_bytes

    @property
    def single_count(self) -> int:
        return sum(len(known) for singles in (self._known, self._left) for known in singles.values())

    def directories(self) -> dict[Directory, None]:
        """Where there is anything."""
        packs = ((pack.name.namespace, pack.name.shard) for pack in self.packs)
        return dict.fromkeys([*self._known, *self._left, *packs])

    def reset(self, namespace: NamespaceDigest) -> None:
        """Forget the namespace; until `wiped`, nothing that a listing meets of it is believed."""
        self.resets[namespace] += 1
        self._wiping[namespace] += 1
        for singles in (self._known, self._left):
            for directory in [directory for directory in singles if directory[0] == namespace]:
                self.single_bytes -= sum(singles.pop(directory).values())
        for pack in self.packs:
            if pack.name.namespace == namespace:
                self.packs.remove(pack)

    def wiped(self, namespace: NamespaceDigest) -> None:
        self._wiping[namespace] -= 1
        self._wiped.add(namespace)

    def believes(self, namespace: NamespaceDigest) -> bool:
        """Whether a listed object of this namespace may be taken for what it seems."""
        return not self.is_wiping(namespace) and namespace not in self._wiped

    def is_wiping(self, namespace: NamespaceDigest) -> bool:
        return self._wiping[namespace] > 0

    # ---------------------------------------------------------------- singles

    def has_single(self, block: BlockName) -> bool:
        at, entry = (block.namespace, block.shard), block.key + block.parent
        return any(entry in singles.get(at, {}) for singles in (self._known, self._left))

    def add_single(self, block: BlockName, object_bytes: int) -> None:
        self.forget_single(block)
        self._put((block.namespace, block.shard), block.key + block.parent, object_bytes)

    def forget_single(self, block: BlockName) -> None:
        for singles in (self._known, self._left):
            self.single_bytes -= singles.get((block.namespace, block.shard), {}).pop(block.key + block.parent, 0)

    def begin_delete(self, block: BlockName) -> None:
        """From now on no page of the listing is believed that still has this block."""
        self.forget_single(block)
        self._dropping.add(block)

    def end_delete(self, block: BlockName) -> None:
        self._dropping.discard(block)
        self._let_go.add(block)

    def meet(self, group: ListedGroup) -> FoundBatch | None:
        """The sweep met these; those that are new."""
        directory = NamespaceDigest(group.namespace), group.shard
        if not self.believes(directory[0]):
            return None
        known, left = self._known.get(directory, {}), self._left.get(directory, {})
        fresh: list[FoundBlock] = []
        for key, parent in zip(KeyRun(group.keys), KeyRun(group.parents), strict=True):
            entry = key + parent
            if entry in known:
                continue
            if entry in left:
                self.single_bytes -= left.pop(entry)
            elif (block := BlockName(*directory, key, parent)) in self._let_go or block in self._dropping:
                continue
            else:
                fresh.append(FoundBlock(key, parent, SINGLE))
            self._put(directory, entry, group.record_bytes)
        return FoundBatch(*directory, group.record_bytes, fresh) if fresh else None

    def _put(self, directory: Directory, entry: bytes, object_bytes: int) -> None:
        self._known.setdefault(directory, {})[entry] = object_bytes
        self.single_bytes += object_bytes

    # ----------------------------------------------------------------- sweeps

    def begin_sweep(self) -> None:
        assert not self._left
        self._known, self._left = {}, self._known
        self._packs_left = dict.fromkeys(pack.name for pack in self.packs)

    def ask_for_page(self) -> None:
        self._let_go.clear()
        self._wiped.clear()

    def meet_pack(self, name: PackName) -> Pack | None:
        """The sweep met this pack; None when it is new."""
        self._packs_left.pop(name, None)
        return self.packs.named(name)

    def end_sweep(self) -> tuple[list[LostRecord], list[Pack]]:
        """What was known before the sweep and is not there any more: forgotten here. Packs are still in the table."""
        gone = list(self._left_over())
        self._left = {}
        packs = [pack for name in self._packs_left if (pack := self.packs.named(name)) is not None]
        self._packs_left = {}
        return gone, packs

    def _left_over(self) -> Iterator[LostRecord]:
        for directory, left in self._left.items():
            for entry, object_bytes in left.items():
                self.single_bytes -= object_bytes
                key, parent = BlockKey(entry[:KEY_BYTES]), BlockKey(entry[KEY_BYTES:])
                yield LostRecord(BlockName(*directory, key, parent), SINGLE)


def records_of(pack: Pack) -> list[LostRecord]:
    """Everything the pack still serves, by the locations given out for it."""
    name = pack.name
    return [
        LostRecord(BlockName(name.namespace, name.shard, record.key, record.parent), pack.location(record))
        for record in pack.records()
    ]


def batches_of(pack: Pack) -> list[FoundBatch]:
    """Everything the pack serves, as found: a batch per length of record."""
    by_length: dict[int, list[FoundBlock]] = {}
    for record in pack.records():
        by_length.setdefault(record.length, []).append(FoundBlock(record.key, record.parent, pack.location(record)))
    return [FoundBatch(pack.name.namespace, pack.name.shard, length, blocks) for length, blocks in by_length.items()]
