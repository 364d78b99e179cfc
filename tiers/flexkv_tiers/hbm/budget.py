"""One HBM budget: what tables take of it, and how many pages the rest makes.

Owns this arithmetic only. Hot buffers are pages too, so room for more requests at once costs the rows of the tables,
and the pages that each of them must be able to have. Called by whoever sizes a worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.pool import GROWTH_PAGES
from flexkv_tiers.hbm.shape import GroupShape, metadata_bytes
from flexkv_tiers.hbm.tables import SEGMENTS_MAX


def page_bytes(shapes: Sequence[GroupShape]) -> int:
    """Bytes of one HBM page: the rows of one block in every layer and plane that moves."""
    return sum(shape.ids_per_block * plane.slot_bytes * len(shape.layers) for shape in shapes for plane in shape.planes)


def table_bytes(shapes: Sequence[GroupShape]) -> int:
    """Bytes of every table beside the rows. A device's kernels have scratch besides (`gather.Scratch.nbytes`)."""
    limits = shapes[0].limits
    per_request, per_batch_row = 4 * limits.blocks_max, 0  # the table of resident pages
    for shape in shapes:
        each = metadata_bytes(shape)
        per_request += each["per_request"]
        per_batch_row += each["per_batch_row"] + 2 * 4 * shape.picks  # slots as planned, and with those in pages
    chunks = {shape.chunk for shape in shapes}
    per_request += len(chunks) * metadata_bytes(shapes[0])["page_table"]
    per_request += 5 * 4 + 4 * max(shape.picks for shape in shapes)  # what all groups share, and absent ids
    per_batch_row += 3 * 4  # request, accepted, number
    shared = 4 + 8 * SEGMENTS_MAX + 4 + 4 * len(shapes)  # size of the batch, segments and theirs, groups' numbers
    return limits.requests_max * per_request + limits.batch_max * per_batch_row + shared


def page_count_min(shapes: Sequence[GroupShape]) -> int:
    """HBM pages with which every request can step: the least of a hot buffer, the page it writes, and its next one."""
    least = max(shape.hot_columns_min for shape in shapes) + 1 + GROWTH_PAGES
    return shapes[0].limits.requests_max * least


def page_count(hbm_bytes: int, shapes: Sequence[GroupShape]) -> int:
    """HBM pages that `hbm_bytes` leave beside the tables.

    Raises FlexKVError(BAD_ARGUMENT) where these are fewer than `page_count_min`.
    """
    fixed, least = table_bytes(shapes), page_count_min(shapes)
    count = (hbm_bytes - fixed) // page_bytes(shapes)
    if count < least:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"{hbm_bytes} bytes of HBM for {shapes[0].limits.requests_max} requests: tables take {fixed}, and {least} "
            f"pages of {page_bytes(shapes)} are the least; give more, or lower requests_max",
        )
    return count
