"""Events and lines of stories as people read them, and as JSON has them. Called by the command that replays."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any

from flexkv_py.core.messages import Event, StoryEvent

KEY_DIGITS = 12
"""Of a key in one line; enough to tell blocks apart."""
ITEMS_MAX = 4
LINE_CHARS_MAX = 400


def event_line(number: int, event: Event) -> str:
    """Number, time, type, and what it says, cut to one line."""
    said = " ".join(f"{name}={_short(value)}" for name, value in _fields(event) if name != "now_ns")
    return f"{number:>8} {event.now_ns / 1e9:.6f} {type(event).__name__} {said}"[:LINE_CHARS_MAX].rstrip()


def story_line(line: StoryEvent) -> str:
    """When, where, what and why."""
    return f"{line.now_ns / 1e9:.6f} {line.tier.name.lower():4} {line.what} {line.detail}".rstrip()


def plain_event(event: Event) -> dict[str, Any]:
    """The whole event in what JSON knows: bytes as hexadecimal digits, tiers and priorities by name."""
    return {"event": type(event).__name__, **_plain_fields(event)}


def _fields(value: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(value, field.name)) for field in fields(value)]


def _plain_fields(value: Any) -> dict[str, Any]:
    return {name: _plain(each) for name, each in _fields(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, IntEnum):
        return value.name.lower()
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(each) for key, each in value.items()}
    return value


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()[:KEY_DIGITS]
    if isinstance(value, list | tuple):
        some = ",".join(_short(each) for each in value[:ITEMS_MAX])
        return f"[{some}{f',… {len(value)} in all' if len(value) > ITEMS_MAX else ''}]"
    if is_dataclass(value):
        return "(" + " ".join(f"{name}={_short(each)}" for name, each in _fields(value)) + ")"
    return str(_plain(value))
