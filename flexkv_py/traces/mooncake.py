"""The Mooncake format: one request a line, in order of arrival, one id per block of 512 tokens."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from flexkv_py.traces.request import BLOCKS_PER_REQUEST_MAX, TraceRequest, coarseness

LISTED_TOKENS = 512


class MooncakeLine(msgspec.Struct):
    """One line. The last of `hash_ids` may stand for a partial block; `timestamp` is milliseconds."""

    timestamp: int
    input_length: int
    hash_ids: list[int]

    def __post_init__(self) -> None:
        if self.timestamp < 0 or self.input_length < 0:
            raise ValueError("'timestamp' and 'input_length' may not be negative")
        if len(self.hash_ids) > BLOCKS_PER_REQUEST_MAX:
            raise ValueError(f"'hash_ids' lists more than {BLOCKS_PER_REQUEST_MAX} blocks")
        if len(self.hash_ids) != -(-self.input_length // LISTED_TOKENS):
            raise ValueError(
                f"'hash_ids' lists {len(self.hash_ids)} blocks of {LISTED_TOKENS} tokens, "
                f"but 'input_length' is {self.input_length}"
            )


def mooncake_requests(lines: Iterator[MooncakeLine], tokens_per_block: int) -> Iterator[TraceRequest]:
    """Requests in the order of the file. Raises FlexKVError (`bad_argument`) for an impossible block size."""
    step = coarseness(tokens_per_block, LISTED_TOKENS)
    return (_request(line, step) for line in lines)


def _request(line: MooncakeLine, step: int) -> TraceRequest:
    ids = line.hash_ids[step - 1 :: step]
    if len(line.hash_ids) % step:
        ids.append(line.hash_ids[-1])  # the rest, not enough for a coarser block
    partial = line.input_length < len(ids) * step * LISTED_TOKENS
    return TraceRequest(line.timestamp / 1000, ids, line.input_length, partial)
