"""Shapes of what is now: health, status, tiers, sessions."""

from __future__ import annotations

from typing import Any, Literal

from flexkvd.api.shapes.base import Shape, TierWord, said


class Alive(Shape):
    """The process answers."""

    alive: Literal[True] = said(True, "Always true: a dead process answers nothing.")


class Readiness(Shape):
    """Whether all is read in that can be, and what is served without."""

    ready: bool = said(True, "Populated, and every tier that can be reached is read in.")
    reasons: dict[str, str] = said({"ssd": "120 of 200 segments"}, "What is awaited, and how far it is.")
    degraded: dict[str, str] = said({"s3": "down: nobody answers"}, "What the daemon serves without for now, and why.")


class Quantiles(Shape):
    """Read off a histogram's buckets."""

    p50: float | None = said(0.0007, "Half took no longer, in seconds (the bound of a bucket); null before the first.")
    p99: float | None = said(0.004, "99 of 100 took no longer, in seconds; null before the first.")


class Link(Shape):
    """One way between two tiers, or between a worker and DRAM."""

    link: str = said("dram_ssd", "Source and target; `_drop`: records being made unreadable.")
    bytes: int = said(1 << 30, "Moved since the start.")
    waiting: int = said(0, "Moves that wait for their turn.")
    running: int = said(3, "Moves on their way.")
    running_bytes: int = said(3 << 20, "Bytes of the moves on their way.")
    dropped: int = said(0, "Moves never begun, because their deadline had passed.")
    faults: int = said(0, "Moves that failed.")
    queue_s: Quantiles = said({"p50": 0.0001, "p99": 0.002}, "Time a move waited for its turn.")
    seconds: Quantiles = said({"p50": 0.0007, "p99": 0.004}, "Time a move took once begun.")


class Breaker(Shape):
    """What guards S3 against us, and us against S3."""

    state: Literal["closed", "open", "half-open"] = said("closed", "Open: requests are not even tried.")
    opened: int = said(0, "Times it opened.")
    rate_per_s_max: float = said(0.0, "Requests a second while the server throttles us; 0: no limit.")
    retry_tokens: float = said(500.0, "What is left of the retry budget.")


class Wear(Shape):
    """What writing costs the disks."""

    written_bytes: int = said(1 << 34, "Record bytes written since the directories were made.")
    budget_bytes_per_day: int = said(0, "`[ssd] endurance_bytes_per_day`; 0: no budget.")
    spent_bytes: int = said(0, "Of the budget's current hour, what is spent beyond what time has paid.")
    write_amplification: float = said(1.02, "Bytes on disk for each byte of a record.")


class Tier(Shape):
    """One tier: what it holds, what moves, how it is."""

    tier: TierWord = said("ssd", "Which.")
    up: bool = said(True, "Whether it serves.")
    down_reason: str = said("", "Why it is down, or fails; empty when it is well.")
    used_bytes: int = said(4 << 30, "In use.")
    capacity_bytes: int | None = said(64 << 30, "Room; 0: no limit of ours; null: not ours to know.")
    blocks: int = said(2048, "Copies that are whole or being written.")
    evictable_blocks: int = said(2040, "Copies that nothing pins or reads.")
    reclaimable_blocks: int = said(512, "Of these, copies that may go at once: also below, or refused there.")
    writes_in_flight: int = said(2, "Blocks being written into it.")
    hits: int = said(81_920, "Blocks loaded into a worker from here.")
    promotions: int = said(9_000, "Blocks promoted to DRAM from here.")
    demotions: int = said(4_000, "Blocks demoted to here.")
    evictions: int = said(1_900, "Copies evicted from here.")
    faults: int = said(0, "Transfers from or to here that failed.")
    links: list[Link] = said([], "The ways that end here and begin nearer to the GPU, and back.")
    breaker: Breaker | None = said(None, "S3 only.")
    wear: Wear | None = said(None, "SSD only.")
    detail: dict[str, Any] = said({"records": 2048}, "What the store says of itself; its fields may change.")


class Tiers(Shape):
    """All tiers, the fastest first."""

    tiers: list[Tier] = said([], "From HBM down.")


class SessionFacts(Shape):
    """One connected client."""

    session: int = said(7, "Its number; never used twice in one life of the daemon.")
    role: str = said("worker", "`worker`, or `scheduler`, which has no memory.")
    instance: str = said("dp0", "Ties the ranks of one engine.")
    client: str = said("engine 1.2", "What it calls itself.")
    tenant: str = said("team-a", "Whose blocks it saves and loads.")
    shard: int = said(0, "Its part of a model.")
    pid: int = said(4711, "Its process; 0 when unknown.")
    age_s: float = said(12.5, "Seconds since it said hello.")
    closed: bool = said(False, "Gone, but its last copies run, or its process may read what it has attached.")


class Session(SessionFacts):
    """One connected client, in numbers."""

    memories: int = said(1, "Memories registered.")
    tickets: int = said(2, "Loads, saves and prefetches that run.")
    leases: int = said(0, "Leases held.")
    attached: int = said(0, "Requests of the row path.")


class Sessions(Shape):
    """All sessions."""

    sessions: list[Session] = said([], "In order of their numbers.")


class RegisteredMemory(Shape):
    """Memory of a worker that the daemon copies to and from."""

    memory: int = said(1, "Its number in the session.")
    bytes: int = said(1 << 30, "Its size.")


class Lease(Shape):
    """Blocks that stay usable until released or expired."""

    lease: int = said(31, "Its number.")
    keys: int = said(512, "Blocks held.")
    expires_s: float | None = said(8.2, "Seconds until it ends by itself.")


class Ticket(Shape):
    """One running load, save, prefetch or flush."""

    ticket: int = said(99, "Its number.")
    kind: str = said("load", "`load`, `save`, `prefetch` or `flush`.")
    keys: int = said(512, "Keys it names.")
    age_s: float = said(0.02, "Seconds since it was opened.")
    state: Literal["running", "copying"] = said("running", "`copying`: decided, the last copies run.")


class AttachedRequest(Shape):
    """A running request that reads rows of the arena by itself."""

    request: int = said(3, "The engine's number of it.")
    blocks: int = said(1024, "Blocks it may read.")


class SessionDetail(SessionFacts):
    """One connected client with all it holds."""

    memories: list[RegisteredMemory] = said([], "Registered memories.")
    leases: list[Lease] = said([], "Leases held.")
    tickets: list[Ticket] = said([], "Tickets that run.")
    attached: list[AttachedRequest] = said([], "Requests of the row path.")


class Status(Readiness):
    """The daemon at a glance."""

    version: str = said("0.1.0", "Of flexkvd.")
    boot: str = said("9f" * 16, "Names this life of the daemon.")
    state: Literal["starting", "ready", "draining"] = said("ready", "`starting`: not all is read in yet.")
    uptime_s: float = said(86_400.0, "Seconds since the start.")
    now: str = said("2026-11-30T07:00:00.000+00:00", "Its clock, ISO 8601.")
    resets: dict[str, Any] = said({"outstanding": 0}, "Resets that are not carried out everywhere yet.")
    planner: dict[str, Any] = said({"blocks": 4096, "transfers": 0}, "What the planner counts; docs/metrics.md.")
    counters: dict[str, dict[str, int]] = said({"hits": {"dram": 512}}, "Running totals, by name and label.")
    link_bytes: dict[str, int] = said({"dram_ssd": 1 << 30}, "Bytes moved, by link.")
    sessions: list[Session] = said([], "Connected clients.")
    tiers: dict[str, dict[str, Any]] = said({"dram": {"bytes": 1 << 32}}, "What each tier's store says of itself.")
    lanes: dict[str, Any] = said({"threads": 2}, "What copies between workers and DRAM.")
    devices: dict[str, Any] = said({}, "CUDA devices that workers lent memory of.")
