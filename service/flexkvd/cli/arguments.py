"""Types of command-line arguments: each turns a word into a value, or says what would have been right."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from flexkv_py.errors import ErrorCode, FlexKVError

COUNT_MAX = 10**12
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("kmgt", start=1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)


def byte_size(word: str) -> int:
    """`512`, `64KiB`, `2GiB`, `1.5GB` → bytes."""
    found = _SIZE.fullmatch(word.strip())
    if found is None or found[2].lower() not in _UNITS:
        raise argparse.ArgumentTypeError(f"{word!r} is no size: write bytes, or 64KiB, 512MiB, 2GiB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def positive_size(word: str) -> int:
    """A size of at least 1 byte."""
    if not (size := byte_size(word)):
        raise argparse.ArgumentTypeError(f"{word!r} is nothing: write a size above 0, as 64KiB")
    return size


def positive(word: str) -> int:
    """A whole number from 1 to COUNT_MAX."""
    return _number_from(1, word)


def whole(word: str) -> int:
    """A whole number from 0 to COUNT_MAX."""
    return _number_from(0, word)


def _number_from(lowest: int, word: str) -> int:
    digits = word.isascii() and word.isdecimal() and len(word) <= len(str(COUNT_MAX))
    if not digits or not lowest <= int(word) <= COUNT_MAX:
        raise argparse.ArgumentTypeError(f"{word[:40]!r} is no whole number from {lowest} to {COUNT_MAX}")
    return int(word)


def counts(word: str) -> tuple[int, ...]:
    """`2048,4096` → whole numbers of at least 1, each once, in order of size."""
    return tuple(sorted({positive(part) for part in word.split(",")}))


def share(word: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{word[:40]!r} is no share: write a number from 0 to 1, as 0.85")
    return value


def block_count(word: str) -> int | None:
    """A number of blocks of at least 1; `inf` → None."""
    return None if word == "inf" else positive(word)


def tier_blocks(word: str) -> float:
    """A number of blocks, 0 for a tier that is not there; `inf` → infinity."""
    return math.inf if word == "inf" else 0 if word == "0" else positive(word)


def writable_file(word: str) -> Path:
    """A file that can be made or replaced, `-` for standard output: found out before a long run, not after it."""
    path = Path(word)
    if word == "-":
        return path
    place = path if path.exists() else path.parent
    if path.is_dir() or not os.access(place, os.W_OK):
        raise argparse.ArgumentTypeError(f"{word!r} cannot be written: name a file in a writable folder")
    return path


def dram_room(word: str) -> float | int:
    """`50%` → 0.5 of all; a number of at least 1 → so many."""
    try:
        return share(str(float(word[:-1]) / 100)) if word.endswith("%") else positive(word)
    except (ValueError, argparse.ArgumentTypeError):
        cause = f"{word[:40]!r} is neither a share from 0% to 100%, like 50%, nor a number of chunks"
        raise argparse.ArgumentTypeError(cause) from None


_TIMES = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
KEYS_MAX = 4096
"""Blocks that one request of the API names; more are named by prefix, by tenant or in several commands."""
KEY_DIGITS = 32
KEY_HEADING = "key"
"""Over the first column of lists of blocks, which may be piped into other commands whole."""
_HEX = re.compile(r"[0-9a-fA-F]*")


def seconds(word: str) -> float:
    """`30`, `500ms`, `10m`, `2h`, `1d` → seconds, more than 0."""
    found = _TIME.fullmatch(word.strip().lower())
    if found is None or found[2] not in _TIMES or not (time_s := float(found[1]) * _TIMES[found[2]]):
        raise argparse.ArgumentTypeError(f"{word[:40]!r} is no time: write seconds, or 500ms, 30s, 10m, 2h, 1d")
    return time_s


def weight(word: str) -> float:
    """A number above 0, up to a million."""
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not 0 < number <= 1e6:
        raise argparse.ArgumentTypeError(f"{word[:40]!r} is no weight: write a number above 0, as 2 or 0.5")
    return number


def key_prefix(word: str) -> str:
    """The beginning of a block's key: up to 32 hex digits."""
    if not _HEX.fullmatch(word) or len(word) > KEY_DIGITS:
        raise argparse.ArgumentTypeError(f"{word[:40]!r} begins no block's key: write up to {KEY_DIGITS} hex digits")
    return word.lower()


def block_key(word: str) -> str:
    """A block's key: 32 hex digits; `-` stands for keys on standard input."""
    if word != "-" and (not _HEX.fullmatch(word) or len(word) != KEY_DIGITS):
        raise argparse.ArgumentTypeError(
            f"{word[:40]!r} is no block's key: write {KEY_DIGITS} hex digits (`flexkv blocks` lists keys), or - to "
            "read them from standard input"
        )
    return word.lower()


def given_keys(words: Sequence[str]) -> list[str]:
    """The keys named, those of standard input in place of a `-`. Raises FlexKVError (`bad_argument`)."""
    keys: list[str] = []
    for word in words:
        keys += _keys_of_input() if word == "-" else [word]
    if words and not keys:
        why = "no block is named on standard input: give lines that begin with a key, as `flexkv blocks` prints them"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, why)
    if len(keys) > KEYS_MAX:
        why = f"{len(keys)} blocks are named, {KEYS_MAX} can be at a time: name them in several commands"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, why)
    return keys


def _keys_of_input() -> list[str]:
    try:
        words = [word for line in sys.stdin for word in line.split()[:1]]
        if words[:1] == [KEY_HEADING]:
            del words[0]
        return [block_key("" if word == "-" else word) for word in words]
    except (argparse.ArgumentTypeError, UnicodeDecodeError) as error:
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"on standard input: {error}") from error
