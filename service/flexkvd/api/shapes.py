"""The shapes of answers and bodies: every field with its meaning, its unit and an example.

Owns the words of `/openapi.json`. A body with a field that is not here is refused; an answer has no field that is not.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flexkv_py.errors import ErrorCode
from flexkv_py.keys import KEY_BYTES

KEYS_MAX = 4096
"""Keys in one body."""
DEADLINE_S_DEFAULT = 60.0
DEADLINE_S_MAX = 3600.0
TTL_S_MAX = 86_400.0
BYTES_MAX = 1 << 50

TierWord = Literal["hbm", "dram", "ssd", "s3"]
BelowWord = Literal["ssd", "s3"]
EXAMPLE_KEY = "5f0c1b2a39485766758493a2b1c0dfee"


def said(example: Any, meaning: str, **limits: Any) -> Any:
    """A field: an example of it, and what it means."""
    return Field(description=meaning, examples=[example], **limits)


Key = Annotated[
    str, Field(pattern=f"^[0-9a-fA-F]{{{2 * KEY_BYTES}}}$", description="Block key, hex.", examples=[EXAMPLE_KEY])
]
Deadline = Annotated[float, Field(gt=0, le=DEADLINE_S_MAX, description="Seconds until it is given up.", examples=[60])]


class Shape(BaseModel):
    """Part of an answer."""


class Body(BaseModel):
    """What is sent: nothing beyond the fields named."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Failure(Shape):
    """Every error of the API."""

    code: ErrorCode = said("bad_argument", "Stable word for programs; docs/errors.md has cause and cure of each.")
    message: str = said("deadline_s: give more than 0", "One sentence that names cause and cure.")


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

    p50: float | None = said(0.0007, "Half took no longer, in seconds; null before the first.")
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
    closed: bool = said(False, "Gone, and only its last copies still run.")


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


class StoryEvent(Shape):
    """Something that happened to a block."""

    age_s: float = said(12.5, "Seconds ago.")
    what: str = said("demote", "Saved, promoted, demoted, evicted, lost, …")
    tier: str = said("ssd", "Where.")
    detail: str = said("", "Why, where there is more to say.")


class Story(Shape):
    """What is remembered of a block, and what it is now."""

    key: Key
    explanation: str = said("never seen", "One sentence: why it is or is not a hit now.")
    events: list[StoryEvent] = said([], "Oldest first, as far back as the ring of stories reaches.")


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


class HotBlock(Shape):
    """A block that is used again and again."""

    key: str = said(EXAMPLE_KEY, "Its key.")
    namespace: str = said("9c" * 32, "The namespace's digest.")
    shard: int = said(0, "Part of the model.")
    tiers: list[TierWord] = said(["dram", "ssd"], "Where a whole copy is, the fastest first.")
    uses: int = said(42, "Saved, loaded or met again, as often as is known.")


class FaultedBlock(Shape):
    """A block's copy that could not be read or written, or was lost."""

    key: str = said(EXAMPLE_KEY, "Its key.")
    age_s: float = said(12.5, "Seconds since.")
    what: str = said("fault", "`fault` or `lost`, as in its story.")
    tier: str = said("ssd", "Where.")
    detail: str = said("promotion: corrupt", "What failed, and why.")


class Notable(Shape):
    """Blocks worth a look."""

    hottest: list[HotBlock] = said([], "The most often used first.")
    faulted: list[FaultedBlock] = said([], "The newest first; a block may stand here more than once.")
