"""What the word of a gate means: one u32 per chunk of a load, in memory of the worker: is it there?

Whoever waits compares with wrap-around, as a stream does (`CU_STREAM_WAIT_VALUE_GEQ`), so a word is used again
without being cleared. Generation g waits for 2g: written behind the copies, or 2g + 1 when they failed. Then too
nobody waits for ever; who was let in looks at the lowest bit, or at its ticket, before it believes a row.
"""

from __future__ import annotations

GATE_BYTES = 4
GENERATIONS = 1 << 31
"""The next generation after the last is 0 again."""
_VALUES = 1 << 32


def gate_value(generation: int, *, failed: bool = False) -> int:
    """What is written for this generation, and (not failed) what is waited for."""
    assert 0 <= generation < GENERATIONS
    return 2 * generation + failed


def next_generation(generation: int) -> int:
    """The generation that uses a word next. Words begin at 0 with generation 1: memory is zero when it is new."""
    return (generation + 1) % GENERATIONS


def is_open(value: int, generation: int) -> bool:
    """Does a stream that waits for this generation pass at `value`?"""
    return (value - gate_value(generation)) % _VALUES < _VALUES // 2


def has_failed(value: int) -> bool:
    """Did the copies behind an open gate fail?"""
    return bool(value & 1)
