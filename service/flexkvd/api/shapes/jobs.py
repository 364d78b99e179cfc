"""Shapes of long work: jobs, and the bodies that start them."""

from __future__ import annotations

from typing import Any, Literal

from flexkvd.api.shapes.base import (
    BYTES_MAX,
    DEADLINE_S_DEFAULT,
    EXAMPLE_KEY,
    KEYS_MAX,
    MOVES_S_DEFAULT,
    PREFIX_PATTERN,
    BelowWord,
    Body,
    Deadline,
    Failure,
    HeldWord,
    Key,
    Shape,
    said,
)


class JobError(Failure):
    """Why a job failed."""


class Job(Shape):
    """One piece of long work."""

    id: int = said(12, "Its number in this life of the daemon.")
    kind: str = said("flush", "What it does.")
    state: Literal["queued", "running", "done", "failed", "cancelled"] = said("running", "Where it stands.")
    done: int = said(120, "So much is done.")
    total: int = said(4096, "Of so much, as far as that is known.")
    unit: str = said("blocks", "What `done` and `total` count.")
    age_s: float = said(2.5, "Seconds since it was asked for.")
    took_s: float | None = said(None, "Seconds from its beginning to its end; null before.")
    result: dict[str, Any] | None = said(None, "What came of it; null before its end.")
    error: JobError | None = said(None, "Why it failed; null when it has not.")
    arguments: dict[str, Any] = said({"to_tier": "ssd"}, "What was asked.")


class Jobs(Shape):
    """Jobs that run, and the last that ended."""

    jobs: list[Job] = said([], "The newest first.")


class FlushBody(Body):
    """What to copy down, and for how long to try."""

    to_tier: BelowWord = said("ssd", "Where every block shall be.", default="ssd")
    deadline_s: Deadline = DEADLINE_S_DEFAULT


class PrefetchBody(Body):
    """What to have in DRAM."""

    keys: list[Key] = said([EXAMPLE_KEY], "Block keys, hex.", min_length=1, max_length=KEYS_MAX)
    deadline_s: Deadline = DEADLINE_S_DEFAULT


class Selecting(Body):
    """Which blocks are meant: `keys`, or all of which everything else said is true; with nothing said, all."""

    keys: list[Key] = said(
        [EXAMPLE_KEY], "These; whatever else is said then does not count.", default=[], max_length=KEYS_MAX
    )
    prefix: str = said("5f0c", "First digits of their keys.", default="", pattern=PREFIX_PATTERN)
    tenant: str = said("", "Only blocks of this tenant.", default="", max_length=256)
    except_tenant: str = said("", "All but blocks of this tenant.", default="", max_length=256)


class EvictBody(Selecting):
    """What to drop from a tier."""

    tier: HeldWord = said("dram", "Where copies are dropped; other tiers keep theirs.")
    bytes: int = said(
        1 << 30, "Enough is gone then, the coldest first; 0: all that is meant.", default=0, ge=0, le=BYTES_MAX
    )
    deadline_s: Deadline = MOVES_S_DEFAULT


class DemoteBody(Selecting):
    """What to copy into a lower tier."""

    to_tier: BelowWord = said("ssd", "Where a copy shall be; the one above stays, ready to go.")
    deadline_s: Deadline = MOVES_S_DEFAULT


class VerifyBody(Body):
    """What to check."""

    tier: HeldWord = said("ssd", "Of which every copy is read again.")


class DrainBody(Body):
    """How long to wait for what runs."""

    deadline_s: Deadline = DEADLINE_S_DEFAULT


class State(Shape):
    """What the daemon admits."""

    state: Literal["starting", "ready", "draining"] = said("ready", "As in /v1/status.")
