"""What the host refuses before a step: sizes, types, requests that are not attached, ids out of range.

Owns the refusals only. Called by `steps` before a step is launched or captured. On CPU the ids themselves
are looked at; a device's are not, for that would wait for it: there *plan* refuses the request (its `ok`
falls and REFUSED is counted), so that no wrong row is ever named.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from numbers import Integral

import torch

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.shape import GroupShape
from flexkv_tiers.hbm.tables import EMPTY, UNMANAGED

REQUEST_MAX = (1 << 32) - 1
"""Requests are told to the daemon as u32."""


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


def check_request(request: int, tokens: int, cached_blocks: int) -> None:
    """Refuse what is no request before it has room."""
    if not all(isinstance(number, Integral) for number in (request, tokens, cached_blocks)):
        raise _refuse(
            f"request {request!r} of {tokens!r} tokens, {cached_blocks!r} blocks of it cached: give whole numbers"
        )
    if not 0 <= request <= REQUEST_MAX:
        raise _refuse(f"request {request}: number requests from 0 to {REQUEST_MAX}")


def check_accepted(accepted: Sequence[int], oks: Sequence[bool], own: Sequence[bool], queries: int) -> None:
    """Refuse the end of a step: `own` says which requests of the batch were ok, `oks` what all ranks agree on."""
    counts = [count for count in accepted if isinstance(count, Integral) and 0 <= count <= queries]
    if not len(counts) == len(accepted) == len(oks) == len(own):
        raise _refuse(f"accepted tokens per request of the batch: {len(own)} numbers from 0 to {queries}")
    if any(ok and not mine for ok, mine in zip(oks, own, strict=True)):
        raise _refuse("a request is said to be ok that was not ok here: agree on `oks` with all ranks (`agree_oks`)")


def check_save_ended(request: int, block: int, saving: Collection[int]) -> None:
    """Refuse the end of a save that does not run."""
    if block not in saving:
        raise _refuse(f"no save of block {block} of request {request} runs: say the end of each once")


def check_load_ended(request: int, blocks: Collection[int], loading: Collection[int]) -> None:
    """Refuse the end of a load in parts: steps would read pages that are still being written."""
    if sorted(blocks) != sorted(loading):
        raise _refuse(
            f"of request {request} {len(loading)} blocks are being loaded, and others are said to be, or not all: "
            "wait for all that `loading` named, and say their end once"
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
