"""Shapes of what was and of what decides: samples, faults, policies."""

from __future__ import annotations

from flexkvd.api.shapes.base import Shape, TierWord, said


class TierSample(Shape):
    """One tier at one moment."""

    used_bytes: int = said(4 << 30, "In use.")
    capacity_bytes: int | None = said(64 << 30, "Room; 0: no limit of ours; null: not ours to know.")
    up: bool = said(True, "Whether it serves.")
    hits: int = said(81_920, "Blocks loaded from here since the start.")
    blocks: int = said(2048, "Copies here.")


class LinkSample(Shape):
    """One link at one moment."""

    bytes: int = said(1 << 30, "Moved since the start.")
    running: int = said(3, "Moves on their way.")
    waiting: int = said(0, "Moves that wait for their turn.")


class Matched(Shape):
    """Keys asked for by match."""

    hit: int = said(90_000, "Found, since the start.")
    miss: int = said(10_000, "Not found, since the start.")


class Guesses(Shape):
    """What a policy guessed, and how it came out."""

    predicted: int = said(512, "Chunks thought to be needed soon, since the start.")
    came_true: int = said(470, "Of these, those that were.")


class Sample(Shape):
    """The daemon at one moment, in running totals: rates are differences of two."""

    t: float = said(1_800_000_000.5, "Seconds since 1970.")
    tiers: dict[str, TierSample] = said({}, "By tier.")
    matched: Matched = said({"hit": 90_000, "miss": 10_000}, "Keys asked for by match.")
    links: dict[str, LinkSample] = said({}, "By link.")
    load_keys: dict[str, int] = said({"loaded": 81_920}, "Keys of loads, by outcome.")
    save_keys: dict[str, int] = said({"stored": 4_096}, "Keys of saves, by outcome.")
    loop_lag_p99_s: float | None = said(0.0002, "How late the loop came to what was ready, over the last minute.")
    sessions: int = said(8, "Connected clients.")
    tickets: int = said(2, "Running tickets.")
    policy: Guesses = said({"predicted": 512, "came_true": 470}, "Guesses of the row policy.")


class Samples(Shape):
    """History, oldest first."""

    samples: list[Sample] = said([], "One a second.")


class Fault(Shape):
    """Something that went wrong lately."""

    age_s: float = said(3.2, "Seconds since the last time.")
    what: str = said("corrupt", "A fault, or an error's code.")
    tier: str = said("ssd", "Where, as far as that is known.")
    detail: str = said("segment 3: checksum of chunk 2 does not hold", "What is known of it.")
    count: int = said(1, "How often, of the same kind in a row.")


class Faults(Shape):
    """Recent faults, newest first."""

    faults: list[Fault] = said([], "At most `limit`.")


class CopyCounts(Shape):
    """How many copies stand in each list of an eviction order."""

    cold: int = said(0, "First victims: nobody asked for them, or they are orphans.")
    once: int = said(1_500, "Used once.")
    again: int = said(540, "Used again.")


class TierPolicy(Shape):
    """The eviction order of one tier."""

    tier: TierWord = said("dram", "Which.")
    policy: str = said("adaptive", "Its eviction order.")
    lists: CopyCounts = said({"cold": 0, "once": 1500, "again": 540}, "Where its copies stand.")
    parameters: dict[str, float] = said({"share_for_once": 1.0}, "What it has learnt or was told.")


class GuessKind(Guesses):
    """Guesses of one kind."""

    kind: str = said("rising", "What the guess is made from.")


class RowPolicy(Guesses):
    """What decides which chunks of running requests leave DRAM, and which come back ahead of need."""

    name: str = said("sparse", "`[row_path] policy`.")
    requests: int = said(4, "Running requests attached.")
    kinds: list[GuessKind] = said([], "By kind of guess.")


class Policy(Shape):
    """Policies at work."""

    tiers: list[TierPolicy] = said([], "Eviction orders, by tier.")
    admission: dict[str, int] = said({"ssd": 1, "s3": 2}, "Uses (the save is one) before a block may go there.")
    row_policy: RowPolicy = said(
        {"name": "lru", "requests": 0, "predicted": 0, "came_true": 0, "kinds": []}, "Of the row path."
    )


class RecorderFacts(Shape):
    """What the flight recorder holds."""

    events: int = said(1_200_000, "Events of the planner.")
    bytes: int = said(41_000_000, "What they take.")
    capacity_bytes: int = said(64 << 20, "`[recorder] bytes`; 0: nothing is recorded.")
    complete: bool = said(True, "Everything since the start: only then a replay begins at birth.")
    since_s: float = said(86_400.0, "Seconds since the oldest of them.")
    dumps: int = said(0, "Dumps taken in this life of the daemon.")
