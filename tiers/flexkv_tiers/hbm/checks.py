"""What the host refuses before a step: sizes, types, requests that are not attached, ids out of range.

Owns the refusals only. Called by `steps` before a step is launched or captured. On CPU the ids themselves
are looked at; a device's are not, for that would wait for it: there *plan* refuses the request (its `ok`
falls and REFUSED is counted), so that no wrong row is ever named.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.shape import GroupShape
from flexkv_tiers.hbm.tables import EMPTY, UNMANAGED


def check_step(
    shape: GroupShape,
    topk: torch.Tensor,
    requests: Sequence[int],
    lengths: Sequence[int],
    newest_first: Sequence[int] | None = None,
) -> None:
    """Refuse a step of `requests` (table rows) with `lengths` tokens each that *plan* could not answer exactly.

    `topk` is the selection, int32 [batch_max, Q, K]. `newest_first` are the first tokens in no saved page
    (None: rows are saved as they are written). Raises FlexKVError: BAD_ARGUMENT for what can never be,
    LIMIT_EXCEEDED for what these tables have no room for.
    """
    _check_selection(shape, topk)
    _check_batch(shape, requests, lengths)
    for row, length in enumerate(lengths):
        _check_window(shape, length, newest_first[row] if newest_first else UNMANAGED)
        if topk.device.type == "cpu":
            _check_ids(shape, topk[row], length)


def check_attached(request: int, attached: Sequence[int]) -> None:
    """Refuse a change to the page table of a request that is not attached."""
    if request not in attached:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT, f"request {request} is not attached: attach it before its pages change"
        )


def _check_selection(shape: GroupShape, topk: torch.Tensor) -> None:
    wanted = (shape.limits.batch_max, shape.limits.queries, shape.selected)
    if tuple(topk.shape) != wanted or topk.dtype != torch.int32 or not topk.is_contiguous():
        raise _refuse(
            f"the selection is {topk.dtype} {list(topk.shape)}: give contiguous int32 {list(wanted)}, "
            f"padded with {EMPTY}"
        )


def _check_batch(shape: GroupShape, requests: Sequence[int], lengths: Sequence[int]) -> None:
    limits = shape.limits
    if len(requests) > limits.batch_max:
        raise FlexKVError(
            ErrorCode.LIMIT_EXCEEDED,
            f"{len(requests)} requests in a step and room for {limits.batch_max}: split the batch, or raise batch_max",
        )
    if len(lengths) != len(requests) or len(set(requests)) != len(requests):
        raise _refuse("give every request of the batch once, with its length")
    for request in requests:
        if not 0 <= request < limits.requests_max:
            raise _refuse(f"request {request} has no row in these tables: use 0 to {limits.requests_max - 1}")


def _check_window(shape: GroupShape, length: int, newest_first: int) -> None:
    visible = shape.visible_ids(length + shape.limits.queries)
    if length < 0 or visible > shape.ids_max:
        blocks = -(-visible // shape.ids_per_block)
        raise FlexKVError(
            ErrorCode.LIMIT_EXCEEDED,
            f"a request of {length} tokens takes {blocks} entries of a page table and there are "
            f"{shape.limits.blocks_max}: raise blocks_max",
        )
    unsaved = visible - shape.whole_ids(min(length, newest_first))
    if visible > shape.slots and unsaved > shape.newest:
        raise FlexKVError(
            ErrorCode.LIMIT_EXCEEDED,
            f"{unsaved} rows are in no saved page and there are {shape.newest} newest slots: wait for the save of full "
            "pages, or raise newest",
        )


def _check_ids(shape: GroupShape, ids: torch.Tensor, length: int) -> None:
    visible = shape.visible_ids(length + shape.limits.queries)
    worst = ids[(ids < EMPTY) | (ids >= visible)]
    if len(worst):
        raise _refuse(
            f"id {int(worst[0])} is selected and the sequence has {visible}: use 0 to {visible - 1}, "
            f"or {EMPTY} for padding"
        )


def _refuse(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_ARGUMENT, why)
