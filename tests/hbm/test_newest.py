"""Which blocks may be saved when, and what becomes of those that could not be."""

from flexkv_tiers.hbm.newest import SAVES_RUNNING_MAX, NewestBlocks, SaveOutcome


def test_only_whole_blocks_of_tokens_that_count_are_saved():
    """A block becomes due when its last token is committed, not when it is written."""
    newest = NewestBlocks(length=62, saved_blocks=0, tokens_per_block=64)
    assert newest.take_due() == []
    newest.commit(1)  # three were written, verification kept one
    assert newest.take_due() == []
    newest.commit(1)
    assert newest.take_due() == [0]
    assert newest.take_due() == []


def test_cached_blocks_are_not_saved_again():
    """Blocks that came from the cache are never due."""
    newest = NewestBlocks(length=200, saved_blocks=2, tokens_per_block=64)
    assert newest.take_due() == [2]


def test_saves_are_bounded():
    """A long prompt is saved a few blocks at a time, in order."""
    newest = NewestBlocks(length=64 * 10, saved_blocks=0, tokens_per_block=64)
    first = newest.take_due()
    assert first == list(range(SAVES_RUNNING_MAX))
    newest.ended(1, SaveOutcome.STORED)
    assert newest.take_due() == [SAVES_RUNNING_MAX]


def test_a_throttled_block_is_due_again_before_later_ones():
    """What could not be saved now is tried again; what was refused is not."""
    newest = NewestBlocks(length=64 * 6, saved_blocks=0, tokens_per_block=64)
    newest.take_due()
    newest.ended(0, SaveOutcome.THROTTLED)
    newest.ended(1, SaveOutcome.REFUSED)
    assert newest.take_due() == [0, 4]
    for block in (0, 2, 3, 4):
        newest.ended(block, SaveOutcome.STORED)
    assert newest.take_due() == [5]
    assert newest.running == {5}
