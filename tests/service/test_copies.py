"""How the executor cuts copies: small chunks together, large ones one by one, nothing lost or doubled."""

from hypothesis import given
from hypothesis import strategies as st

from flexkvd.copies import TOGETHER_BYTES_MAX, chunks_together

KIB = 1024


def test_all_chunks_of_a_few_small_blocks_are_one_copy() -> None:
    """Eight chunks of 4 KiB of three blocks are a fraction of a megabyte: one task, not eight."""
    assert chunks_together(0xFF, 3, [4 * KIB] * 8) == [list(range(8))]


def test_large_chunks_go_one_by_one() -> None:
    """So that a worker can begin with chunk 0 while the others are still on their way."""
    assert chunks_together(0b1111, 10, [320 * KIB] * 4) == [[0], [1], [2], [3]]


@given(st.integers(0, 0xFFFF), st.integers(1, 40), st.lists(st.integers(1, 64), min_size=16, max_size=16))
def test_every_chunk_is_copied_once_and_in_order(mask: int, blocks: int, pages: list[int]) -> None:
    """Whatever mask and sizes: the runs joined are the mask's chunks, and only a single chunk exceeds the limit."""
    chunk_bytes = [4 * KIB * count for count in pages]
    runs = chunks_together(mask, blocks, chunk_bytes)
    assert [chunk for run in runs for chunk in run] == [chunk for chunk in range(16) if mask >> chunk & 1]
    for run in runs:
        assert len(run) == 1 or blocks * sum(chunk_bytes[chunk] for chunk in run) <= TOGETHER_BYTES_MAX
