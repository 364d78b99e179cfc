"""The frame pool against a plain model: no page twice, none lost, segments move between sizes."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexkv_py.core.frames import FramePool
from tests.invariants import used_pages

PAGE_BYTES = 4096
SEGMENT_PAGES = 12
SIZES = (1, 2, 3, 5)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(("take", "give", "drain")), st.sampled_from(SIZES), st.integers(1, 6))),
)
def test_any_sequence_hands_out_each_page_once(segment_count, steps):
    """Taken frames never overlap nor straddle a segment, and what is given back can be taken again."""
    pool = FramePool(SEGMENT_PAGES * PAGE_BYTES, segment_count)
    taken: list[tuple[int, bytes]] = []
    for what, size, count in steps:
        if what == "take":
            frames = pool.take(size, count)
            if frames is not None:
                taken.append((size, frames))
        elif what == "give" and taken:
            pool.give(*taken.pop(count % len(taken)))
        elif what == "drain":
            pool.drain_for(size)
        pages = [page for size, packed in taken for page in pages_of(size, packed)]
        assert len(pages) == len(set(pages)) == pool.used_pages
        used_pages(pool)
    for size, frames in taken:
        pool.give(size, frames)
    assert pool.used_pages == 0
    for size in SIZES:  # whatever happened before, an empty pool serves every size in full
        frames = pool.take(size, SEGMENT_PAGES // size * segment_count)
        assert frames is not None
        pool.give(size, frames)


def pages_of(size: int, packed: bytes) -> list[int]:
    """Every page of these frames, each checked to lie within one segment."""
    pages = []
    for frame in array("I", packed):
        assert frame // SEGMENT_PAGES == (frame + size - 1) // SEGMENT_PAGES
        pages.extend(range(frame, frame + size))
    return pages


def test_taking_is_all_or_nothing():
    """Too few free frames give none at all, and change nothing that is in use."""
    pool = FramePool(SEGMENT_PAGES * PAGE_BYTES, 1)
    assert pool.take(3, 5) is None
    assert pool.used_pages == 0
    frames = pool.take(3, 4)
    assert frames is not None
    assert len(array("I", frames)) == 4


def test_a_wholly_free_segment_moves_to_another_size():
    """Two geometries share one arena: what one gave back whole the other may cut anew."""
    pool = FramePool(SEGMENT_PAGES * PAGE_BYTES, 2)
    first = pool.take(1, 24)
    assert first is not None
    assert pool.take(4, 1) is None
    pool.give(1, first)
    assert pool.take(4, 6) is not None


def test_a_draining_segment_comes_free_for_another_size():
    """Frames of a draining segment are not given out again, so that it is empty one day."""
    pool = FramePool(SEGMENT_PAGES * PAGE_BYTES, 2)
    taken = [pool.take(1, 1) for _ in range(24)]
    pool.drain_for(4)
    for frames in taken:
        assert frames is not None
        pool.give(1, frames)
        again = pool.take(4, 3)
        if again is not None:
            break
    else:
        pytest.fail("no segment came free")
    used_pages(pool)


def test_what_can_never_fit_is_known():
    """A block larger than the whole arena, or a frame larger than a segment, is told from one that must wait."""
    pool = FramePool(SEGMENT_PAGES * PAGE_BYTES, 2)
    assert pool.fits(5, 4)
    assert not pool.fits(5, 5)
    assert not pool.fits(SEGMENT_PAGES + 1, 1)
