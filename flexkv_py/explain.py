"""Why a block is, or is not, a hit now, in a sentence for people. Changes nothing.

The judgement is that of `core.matching`: READY in a tier that is up, and so is every ancestor.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexkv_py.core.blocks import Block, CopyState, Index
from flexkv_py.core.matching import slowest_tier
from flexkv_py.core.messages import Tier
from flexkv_py.core.state import State
from flexkv_py.keys import ROOT, BlockKey

ANCESTORS_MAX = 16_384
NEVER_SEEN = "never seen here, or so long ago that its story is forgotten"


@dataclass(frozen=True, slots=True)
class Explanation:
    """`matchable`: a match that asks for the block's whole chain, in its own shard, reaches it."""

    matchable: bool
    sentence: str


def explain(state: State, key: BlockKey, now_ns: int) -> str:
    """One sentence for the key; one for each shard where several have its namespace."""
    homes = dict.fromkeys(index.namespace for index in state.indexes.values() if key in index.blocks)
    found = [index for index in state.indexes.values() if index.namespace in homes]
    if not found:
        return _unknown(state, key, now_ns)
    sentences = {index: explain_in(state, index, key, now_ns).sentence for index in found}
    if len(found) == 1:
        return sentences[found[0]]
    several = len(homes) > 1
    return "; ".join(
        f"{f'namespace {index.namespace.hex()[:12]}… ' if several else ''}shard {index.shard}: {sentence}"
        for index, sentence in sentences.items()
    )


def explain_in(state: State, index: Index, key: BlockKey, now_ns: int) -> Explanation:
    """The same in one namespace and shard."""
    block = index.blocks.get(key)
    if block is None:
        return Explanation(False, _unknown(state, key, now_ns))
    tier = slowest_tier(state, block)
    if tier is None:
        return Explanation(False, f"not a hit now: {_not_ready(state, block)}")
    where = f"whole in {' and '.join(_ready_tiers(block))}"
    culprit = _first_gap(state, block)
    if culprit is None:
        return Explanation(True, f"a hit: {where}, as is its whole prefix; a load takes it from {_word(tier)}")
    return Explanation(False, f"{where}, but {_gap(state, block, culprit, now_ns)}")


def _first_gap(state: State, block: Block) -> Block | BlockKey | None:
    """The nearest ancestor that cannot be had now: itself, or the key of one in no tier; None when there is none."""
    exact = bool(state.relink) or not all(level.up for level in state.levels.values())
    for _ in range(ANCESTORS_MAX):
        if not exact and block.linked:
            return None
        if block.parent == ROOT:
            return None
        parent = block.index.blocks.get(block.parent)
        if parent is None:
            return block.parent
        if slowest_tier(state, parent) is None:
            return parent
        block = parent
    return None


def _gap(state: State, block: Block, culprit: Block | BlockKey, now_ns: int) -> str:
    key = culprit.key if isinstance(culprit, Block) else culprit
    name = f"{'its parent' if key == block.parent else 'an ancestor,'} {key.hex()[:12]}…"
    if isinstance(culprit, Block):
        return f"{name} is not a hit now: {_not_ready(state, culprit)}"
    return f"{name} is in no tier: {_last_heard(state, key, now_ns)}; it is a hit again when that one is saved again"


def _not_ready(state: State, block: Block) -> str:
    """Why no whole copy of the block can be had."""
    down = [level for level in state.below if not level.up and _is_ready(block, level.tier)]
    if down:
        words = " and ".join(f"{level.word} (down: {level.down_reason or 'no reason is known'})" for level in down)
        return f"it is only in {words}, and a hit again when that is up"
    if block.dram is not None and block.dram.state is CopyState.FILLING:
        return "it is being saved, and a hit as soon as its bytes are whole"
    return "its last copy is being dropped; save it again"


def _unknown(state: State, key: BlockKey, now_ns: int) -> str:
    """A key without a block."""
    for reset in state.resets:
        if any(key in index.blocks for index in reset.indexes):
            return "not a hit: its namespace is being reset; save it again"
    return f"not a hit: in no tier: {_last_heard(state, key, now_ns)}; save it again"


def _last_heard(state: State, key: BlockKey, now_ns: int) -> str:
    """The newest line of its story."""
    line = next((event for event in reversed(state.story) if event[1] == key), None)
    if line is None:
        return NEVER_SEEN
    told_ns, _, what, tier, detail = line
    age, why = f"{(now_ns - told_ns) / 1e9:.3g} s ago", f" ({detail})" if detail else ""
    if what == "evict":
        return f"evicted from {_word(tier)} {age}{why}"
    if what == "lost":
        return f"lost by {_word(tier)} {age}{why}"
    return f"last heard of {age}: {what} {_word(tier)}{why}"


def _is_ready(block: Block, tier: Tier) -> bool:
    copy = block.copy_in(tier)
    return copy is not None and copy.state is CopyState.READY


def _ready_tiers(block: Block) -> list[str]:
    """Where it is whole; a DRAM copy that is there in part only counts with what is below."""
    whole = [copy for copy in block.copies() if copy.state is CopyState.READY]
    if block.dram in whole and block.dram is not None and block.dram.lacks:
        whole.remove(block.dram)
    return [_word(copy.tier) for copy in whole]


def _word(tier: Tier) -> str:
    return tier.name.lower()
