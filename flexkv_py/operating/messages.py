"""What the planner hears of its operator, and what it tells him.

Requests and operations are numbered by whoever asks; every one of them ends in exactly one answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flexkv_py.core.messages import ExtensionEvent, ExtensionInstruction, Tier
from flexkv_py.errors import ErrorCode
from flexkv_py.keys import BlockKey, NamespaceDigest

# ------------------------------------------------------------------ events


class OperationKind(StrEnum):
    """What an operation does with the blocks it names, one after another."""

    EVICT = "evict"
    """Drop their copies in a tier; what would be lost is demoted first."""
    DEMOTE = "demote"
    """Give them a copy in a lower tier."""
    PREFETCH = "prefetch"
    """Give them a copy in DRAM."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which blocks are meant: those of `keys`, or all of which every other word is true."""

    keys: tuple[BlockKey, ...] = ()
    prefix: str = ""
    """First hexadecimal digits of the key."""
    namespaces: tuple[NamespaceDigest, ...] | None = None
    """None: all of them."""
    bytes_max: int = 0
    """Of an eviction: enough is gone then, the coldest first; 0 = all that is meant."""


@dataclass(slots=True)
class PinAsked(ExtensionEvent):
    """Keep every copy that these blocks have now, for `ttl_ns`."""

    request: int
    keys: list[BlockKey]
    ttl_ns: int
    now_ns: int


@dataclass(slots=True)
class UnpinAsked(ExtensionEvent):
    """These blocks may go again."""

    request: int
    keys: list[BlockKey]
    now_ns: int


@dataclass(slots=True)
class OperationAsked(ExtensionEvent):
    """Do this with the chosen blocks, in slices. What is not done at the deadline is left as it is."""

    operation: int
    kind: OperationKind
    choice: Choice
    tier: Tier
    """EVICT: where copies are dropped; otherwise where they are wanted."""
    deadline_ns: int
    now_ns: int


@dataclass(slots=True)
class OperationCancelled(ExtensionEvent):
    """Nobody wants the rest of it. What is on its way runs to its end."""

    operation: int
    now_ns: int


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of the planner that may change while it runs; None = as it is."""

    policy: str | None = None
    row_policy: str | None = None
    ssd_hits_min: int | None = None
    s3_hits_min: int | None = None
    dram_clean_ahead: float | None = None
    ssd_clean_ahead: float | None = None
    ssd_bytes_per_day: int | None = None
    retry_after_ns: int | None = None


@dataclass(slots=True)
class RulesChanged(ExtensionEvent):
    """From now on these rules hold; copies move into another order in slices."""

    rules: Rules
    now_ns: int


@dataclass(slots=True)
class DrainEnded(ExtensionEvent):
    """After DrainStarted: new requests are admitted again."""

    now_ns: int


# ----------------------------------------------------------------- answers


@dataclass(slots=True)
class PinAnswered(ExtensionInstruction):
    """`pinned` of the keys have pinned copies, of `bytes` in all; of the others no tier has a whole copy."""

    request: int
    pinned: int
    missing: list[BlockKey]
    bytes: int


@dataclass(slots=True)
class UnpinAnswered(ExtensionInstruction):
    """So many of the keys were pinned."""

    request: int
    unpinned: int


@dataclass(slots=True)
class OperationAdvanced(ExtensionInstruction):
    """`done` of `total` blocks are dealt with."""

    operation: int
    done: int
    total: int


@dataclass(slots=True)
class OperationEnded(ExtensionInstruction):
    """Done with `blocks`, of `bytes` in all; `kept` were left as they were, and `detail` says why."""

    operation: int
    blocks: int
    bytes: int
    kept: int
    detail: str


@dataclass(slots=True)
class WishRefused(ExtensionInstruction):
    """A request or operation is refused; nothing was changed."""

    number: int
    code: ErrorCode
    message: str
