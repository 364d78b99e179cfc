"""Pure choices: may this copy go, must it be written first, where to, and where to read from."""

from __future__ import annotations

from enum import StrEnum

from flexkv_py.core.blocks import READY, Block, Copy, Rank
from flexkv_py.core.messages import DRAM, S3, SSD, Tier
from flexkv_py.core.state import Level, State

LOW_USES_MIN = 2
"""Uses a block of low priority needs before it is written below unasked."""


class Verdict(StrEnum):
    """What stands between a cold copy and its eviction."""

    COVERED = "also below"
    REFUSED = "admission refused it below"
    NO_TIER = "no tier below takes it"
    FAULTS = "its demotions failed"
    PUSHED_OUT = "its record made room below, and it was not used since"
    AILS = "the tier below does not answer, and room is needed"
    WRITE = "must be written below first"
    HELD = "held by a lease and nowhere else"

    @property
    def may_go(self) -> bool:
        return self is not WRITE and self is not HELD


NO_TIER, REFUSED, WRITE, HELD = Verdict.NO_TIER, Verdict.REFUSED, Verdict.WRITE, Verdict.HELD


def judge(state: State, copy: Copy) -> Verdict:
    """May this READY, unpinned copy be evicted?"""
    block = copy.block
    if is_below(block, copy.tier):
        return Verdict.COVERED
    takers = _takers(state, copy)
    if block.needed and not any(_stays(other) for other in block.copies() if other is not copy):
        return WRITE if takers else HELD
    if block.rule.skip_below:
        return REFUSED
    if not takers or (copy.tier is not DRAM and block.index.spec is None):  # staging must know how it is cut
        return NO_TIER
    if state.pushed_out.get(block) == block.uses:
        return Verdict.PUSHED_OUT
    if state.demotion_faults.get(block, 0) >= state.config.demotion_faults_max:
        return Verdict.FAULTS
    return REFUSED if all(refusal(state, level, block) for level in takers) else WRITE


def judge_now(state: State, copy: Copy) -> Verdict:
    """May it go now that its room is needed? Nobody waits for a sick S3."""
    verdict, block = judge(state, copy), copy.block
    if verdict is not WRITE:
        return verdict
    wanting = [level for level in _takers(state, copy) if block.needed or not refusal(state, level, block)]
    if not all(level.ails(state.now_ns) for level in wanting):
        return verdict
    return HELD if block.needed else Verdict.AILS


def _stays(copy: Copy) -> bool:
    """Whether a block can count on this copy when another goes: not on one that stands ready to go.

    Nor on what a running request has in DRAM: it may have to leave chunk by chunk, and needs its record then.
    """
    if copy.tier is DRAM and copy.block.key in copy.block.index.attached:
        return False
    return copy.state is READY and not copy.stands_ready


def _takers(state: State, copy: Copy) -> list[Level]:
    """The lower tiers that take blocks of this namespace at all."""
    if not state.below or (state.resets and being_reset(state, copy.block)):
        return []
    index, now_ns = copy.block.index, state.now_ns
    return [level for level in state.below if level.tier > copy.tier and level.takes(index, now_ns)]


def refusal(state: State, level: Level, block: Block) -> str:
    """The rule that keeps a block out of a tier as long as nobody insists; empty when it may go there."""
    rank = block.rule.rank
    if rank is Rank.LOW and block.uses < LOW_USES_MIN:
        return "low priority, and not used again"
    if block.uses < level.hits_min and rank is not Rank.HIGH:
        return f"{level.tier.name.lower()}_hits_min = {level.hits_min}"
    return "" if level.budget.admits(state.now_ns) else "endurance budget"


def explain(state: State, copy: Copy, verdict: Verdict) -> str:
    """The verdict for the story; a refusal with the rules that refused, and the count they saw."""
    if verdict is NO_TIER and state.below:
        lower = [level for level in state.below if level.tier > copy.tier]
        return ": ".join([verdict, *filter(None, (level.hopeless(copy.block.index) for level in lower))])
    if verdict is not REFUSED:
        return verdict
    return f"{verdict}: used {copy.block.uses} times, {', '.join(refusals(state, copy))}"


def refusals(state: State, copy: Copy) -> list[str]:
    """What each tier below that could take the block has against it."""
    if copy.block.rule.skip_below:
        return ["skip_below"]
    return [refusal(state, level, copy.block) for level in _takers(state, copy)]


def is_below(block: Block, tier: Tier) -> bool:
    """Whether a lower tier holds the block, whole and verified."""
    ssd, s3 = block.ssd, block.s3
    if s3 is not None and s3.state is READY and tier < S3:
        return True
    return tier is DRAM and ssd is not None and ssd.state is READY


def being_reset(state: State, block: Block) -> bool:
    """Whether a reset of the block's namespace is still at work below: then nothing new is written there."""
    return any(reset.namespace == block.index.namespace for reset in state.resets)


def source_below(state: State, block: Block, tier: Tier = DRAM) -> Copy | None:
    """The fastest READY copy below `tier` whose own tier is up."""
    for copy in (block.ssd, block.s3):
        if copy is None or copy.state is not READY:
            continue
        if copy.tier > tier and state.levels[copy.tier].up:
            return copy
    return None


def write_may_start(state: State, level: Level, block: Block) -> bool:
    """Whether this block's demotion may be handed to the tier now.

    Not to an SSD whose recovery still runs: a block written anew before its old record is met would
    lie there twice.
    """
    if level.recovering and level.tier is SSD:
        return False
    fits = level.writes.count == 0 if level.failing else level.writes.takes(block.index.record_bytes)
    return level.up and fits and level.pause_until_ns <= state.now_ns
