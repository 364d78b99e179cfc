"""One request of a trace, whatever format it came from; and how blocks are made coarser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexkv_py.errors import ErrorCode, FlexKVError

BLOCKS_PER_REQUEST_MAX = 1 << 20
"""A request of 64 million tokens; more is a damaged line, and would be expanded into memory."""


@dataclass(slots=True)
class TraceRequest:
    """One model call.

    `time_s` counts from the start of the trace. `ids` names the blocks of the input in order; each
    id stands for its block *and everything before it*, so two requests share a prefix exactly as
    far as their ids agree. With `partial` the last id stands for a block that is not full. Calls of
    one `session` are made one after another; None: the trace does not say.
    """

    time_s: float
    ids: Sequence[int]
    tokens: int
    partial: bool
    session: int | None = None

    @property
    def full_ids(self) -> Sequence[int]:
        """Ids of the full blocks only."""
        return self.ids[:-1] if self.partial else self.ids


def coarseness(tokens_per_block: int, listed_tokens: int) -> int:
    """How many listed blocks make one block of `tokens_per_block`.

    Raises FlexKVError (`bad_argument`) unless the trace's own blocks fit in exactly.
    """
    count, rest = divmod(tokens_per_block, listed_tokens)
    if rest or count < 1:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"this trace lists blocks of {listed_tokens} tokens, so it cannot be cut into blocks of "
            f"{tokens_per_block}: choose a multiple of {listed_tokens}",
        )
    return count
