"""One HBM budget: what hot buffers and tables take of it, and how many pages the rest makes.

Owns this arithmetic only. Every request has its hot buffers whether it uses them or not, so more rows of the tables
leave fewer pages: more requests at once, of which fewer stay resident. Called by whoever sizes a worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.pool import GROWTH_PAGES
from flexkv_tiers.hbm.shape import GroupShape, metadata_bytes
from flexkv_tiers.hbm.tables import SEGMENTS_MAX


def hot_bytes(shapes: Sequence[GroupShape]) -> int:
    """Bytes of all hot buffers: every request, group, layer and plane that moves."""
    requests = shapes[0].limits.requests_max
    return requests * sum(
        shape.width * plane.slot_bytes * len(shape.layers) for shape in shapes for plane in shape.planes
    )


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


def page_count(hbm_bytes: int, shapes: Sequence[GroupShape]) -> int:
    """HBM pages that `hbm_bytes` leave beside hot buffers and tables.

    Raises FlexKVError(BAD_ARGUMENT) where not every request could have the page it writes and its next one.
    """
    fixed = hot_bytes(shapes) + table_bytes(shapes)
    least = shapes[0].limits.requests_max * (1 + GROWTH_PAGES)
    count = (hbm_bytes - fixed) // page_bytes(shapes)
    if count < least:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"{hbm_bytes} bytes of HBM for {shapes[0].limits.requests_max} requests: hot buffers and tables take "
            f"{fixed}, and {least} pages of {page_bytes(shapes)} are the least; give more, or lower requests_max",
        )
    return count
