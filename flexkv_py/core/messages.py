"""Every event the planner hears and every instruction it gives.

Events are past tense, instructions imperative. Payloads are plural: one event per message or per
finished batch, never one per block. Nothing here holds bytes of blocks: frames are numbers, pages of
a worker never reach the planner at all (a copy names its ticket and the position of the key in it).
All times are nanoseconds of one monotonic clock; the planner never reads a clock itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flexkv_py.errors import ErrorCode
from flexkv_py.keys import BlockKey, NamespaceDigest
from flexkv_py.rows.messages import (
    AbsentEntry,
    AttachAnswered,
    ChangePages,
    HeatEntry,
    HeatReported,
    LoseSession,
    MissEntry,
    PageGrant,
    PageRevoke,
    PagesAcknowledged,
    RefuseReplay,
    RequestAttached,
    RequestDetached,
    RowEvent,
    RowInstruction,
    WorkerGone,
)
from flexkv_py.tenants.owner import Quota
from flexkv_py.words import (
    DRAM,
    LOAD,
    PREFETCH,
    S3,
    SAVE,
    SSD,
    BlockName,
    Fault,
    MoveKind,
    NamespaceSpec,
    Outcome,
    Priority,
    ReplayOutcome,
    SaveHints,
    StoryEvent,
    TicketKind,
    Tier,
)

# ------------------------------------------------------------------ events


@dataclass(slots=True)
class SessionOpened:
    """A client said hello and was accepted."""

    session: int
    namespace: NamespaceSpec
    shard: int
    now_ns: int
    instance: str = ""
    """Ties the ranks of one engine together; empty: this session is alone."""
    tenant: str = "default"
    """Whose namespace it is: any text."""


@dataclass(slots=True)
class SessionClosed:
    """A session's socket is gone, whatever the reason."""

    session: int
    now_ns: int


@dataclass(slots=True)
class MatchAsked:
    """How long a prefix of `keys` is usable in all `shards`? With `hold_ns` > 0, lease it."""

    session: int
    request: int
    keys: Sequence[BlockKey]
    shards: tuple[int, ...]
    hold_ns: int
    now_ns: int


@dataclass(slots=True)
class LoadAsked:
    """Promote `keys` and copy them into the worker. The keys are distinct (checked at the edge)."""

    session: int
    ticket: int
    keys: list[BlockKey]
    deadline_ns: int
    now_ns: int


@dataclass(slots=True)
class SaveAsked:
    """Copy blocks out of the worker; `keys` are a chain whose first parent is `parent`."""

    session: int
    ticket: int
    keys: list[BlockKey]
    parent: BlockKey
    deadline_ns: int
    ack: Tier
    hints: SaveHints
    now_ns: int


@dataclass(slots=True)
class PrefetchAsked:
    """Promote `keys` to `to_tier` (DRAM), copy nothing into the worker."""

    session: int
    ticket: int
    keys: list[BlockKey]
    deadline_ns: int
    to_tier: Tier
    now_ns: int


@dataclass(slots=True)
class FlushAsked:
    """Copy everything READY of a namespace down to `to_tier`, admission aside.

    `session` 0 is the daemon itself (REST, drain); `namespace` None means all of them.
    """

    session: int
    ticket: int
    namespace: NamespaceDigest | None
    to_tier: Tier
    deadline_ns: int
    now_ns: int


@dataclass(slots=True)
class TicketCancelled:
    """Nobody wants the rest of this ticket. It ends at once; copies in flight run to their end."""

    session: int
    ticket: int
    now_ns: int


@dataclass(slots=True)
class LeaseReleased:
    """The holder of a lease needs it no more."""

    session: int
    request: int
    lease: int
    now_ns: int


@dataclass(slots=True)
class NamespaceReset:
    """Forget everything of a namespace, all shards, in every tier."""

    session: int
    request: int
    namespace: NamespaceDigest
    now_ns: int


@dataclass(slots=True)
class ChunkLanded:
    """One chunk of a running promotion is in its frame and its checksum holds."""

    transfer: int
    chunk: int
    now_ns: int


@dataclass(slots=True)
class TransferResult:
    """One transfer's end. `chunks` is the mask of chunks a worker copy finished; `location` is
    where a write put the record; `detail` is a sentence for the story and the log."""

    transfer: int
    fault: Fault | None = None
    location: int = 0
    chunks: int = 0
    detail: str = ""


@dataclass(slots=True)
class TransfersFinished:
    """A batch of transfers ended."""

    results: list[TransferResult]
    now_ns: int


class FoundBlock(NamedTuple):
    """A record met at start. `location` is the tier's own name for its place.

    A tuple, because a million of them come at start: `map(FoundBlock._make, rows)` makes them from unpacked rows.
    """

    key: BlockKey
    parent: BlockKey
    location: int


@dataclass(slots=True)
class BlocksFound:
    """A tier's recovery or listing met these whole records of one namespace and shard."""

    tier: Tier
    namespace: NamespaceDigest
    shard: int
    record_bytes: int
    blocks: list[FoundBlock]
    now_ns: int
    chunk_bytes: tuple[int, ...] = ()
    """How the records are cut, where the tier knows it (a listing by names does not)."""


@dataclass(slots=True)
class RecoveryFinished:
    """Everything the tier had at start has been told by BlocksFound."""

    tier: Tier
    now_ns: int


@dataclass(slots=True)
class LostRecord:
    """A record a tier does not have any more, by the block's name and the location it was told for it."""

    block: BlockName
    location: int


@dataclass(slots=True)
class RecordsLost:
    """A tier let go of these records by itself: reclaimed, expired, or found damaged. No drop is due for them."""

    tier: Tier
    records: list[LostRecord]
    reason: str
    now_ns: int


@dataclass(slots=True)
class TierChanged:
    """A tier went down whole, or came back."""

    tier: Tier
    up: bool
    reason: str
    now_ns: int


@dataclass(slots=True)
class RoomRestored:
    """A disk that was full has room again: the tier is as large as was counted."""

    tier: Tier
    now_ns: int


@dataclass(slots=True)
class DrainStarted:
    """SIGTERM: admit nothing new. Running tickets end or are aborted by their deadlines."""

    now_ns: int


@dataclass(slots=True)
class NamespacesNamed:
    """What earlier lives of the daemon heard of whose namespaces are whose, before what they left is found."""

    names: list[tuple[NamespaceDigest, str]]
    now_ns: int


@dataclass(slots=True)
class QuotaChanged:
    """A tenant may use so much from now on (`NO_QUOTA`: as it needs). What is above it goes as soon as it may."""

    tenant: str
    quota: Quota
    now_ns: int


@dataclass(slots=True)
class TimePassed:
    """Nothing happened, but deadlines may have passed."""

    now_ns: int


class ExtensionEvent:
    """An event of an extension of the planner, declared there as a dataclass like those above."""

    __slots__ = ()
    now_ns: int


ClientAsked = SessionOpened | SessionClosed | MatchAsked | LoadAsked | SaveAsked | PrefetchAsked | FlushAsked
ClientEnded = TicketCancelled | LeaseReleased | NamespaceReset
TierEvent = ChunkLanded | TransfersFinished | BlocksFound | RecoveryFinished | RecordsLost | TierChanged | RoomRestored
DaemonEvent = NamespacesNamed | QuotaChanged | DrainStarted | TimePassed | ExtensionEvent
Event = ClientAsked | ClientEnded | TierEvent | RowEvent | DaemonEvent


# ------------------------------------------------------------ instructions


@dataclass(slots=True)
class StartMove:
    """Move one block between DRAM frames and a lower tier (`tier`).

    `frames[c]` is the frame number of chunk c and `chunk_bytes[c]` its length. For DROP there are no
    frames. A promotion reads the chunks in `chunks` (mask), the others are there. Ends as one TransferResult.
    """

    transfer: int
    kind: MoveKind
    tier: Tier
    block: BlockName
    location: int
    frames: tuple[int, ...]
    chunk_bytes: tuple[int, ...]
    priority: Priority
    deadline_ns: int
    chunks: int = 0


@dataclass(slots=True)
class BlockCopy:
    """One block of a worker copy: the `position` of its key in the ticket, and its frames."""

    transfer: int
    position: int
    key: BlockKey
    frames: tuple[int, ...]


@dataclass(slots=True)
class StartCopies:
    """Copy chunks `chunks` (mask) of these blocks between frames and the ticket's pages.

    Into the worker for a load, out of it for a save (which also checksums and then seals the frames).
    Each block ends in a TransferResult whose `chunks` says which of them are done.
    """

    session: int
    ticket: int
    kind: TicketKind
    blocks: list[BlockCopy]
    chunks: int
    priority: Priority
    deadline_ns: int


@dataclass(slots=True)
class TierRun:
    """`count` consecutive blocks whose slowest needed tier is `tier`."""

    tier: Tier
    count: int


@dataclass(slots=True)
class MatchAnswered:
    """`length` is the usable prefix; `lease` is 0 when none was asked for or nothing matched."""

    session: int
    request: int
    length: int
    runs: list[TierRun]
    lease: int


@dataclass(slots=True)
class TicketFinished:
    """A ticket is over: one outcome per key (for a flush: none, `stored` counts what was copied)."""

    session: int
    ticket: int
    kind: TicketKind
    outcomes: list[Outcome]
    detail: str
    retry_after_ns: int
    stored: int
    tiers: bytes
    """One byte per key: the Tier a loaded block was taken from, 0 where nothing was loaded."""


@dataclass(slots=True)
class RequestDone:
    """A request without a payload is done (release, reset)."""

    session: int
    request: int


@dataclass(slots=True)
class RequestRefused:
    """A request failed with a code. `ticket` is set when it was to open one."""

    session: int
    request: int
    ticket: int
    code: ErrorCode
    message: str
    retry_after_ns: int


@dataclass(slots=True)
class EndSession:
    """The planner has let go of a closed session; its memory may go after its last copy."""

    session: int


class ExtensionInstruction:
    """What an extension of the planner says, declared there."""

    __slots__ = ()


Answer = MatchAnswered | TicketFinished | RequestDone | RequestRefused | EndSession
Instruction = StartMove | StartCopies | Answer | RowInstruction | ExtensionInstruction

__all__ = ["BlockName", "Fault", "MoveKind", "NamespaceSpec", "Outcome"]
__all__ += ["Priority", "ReplayOutcome", "SaveHints", "StoryEvent", "TicketKind", "Tier"]
__all__ += ["AbsentEntry", "AttachAnswered", "ChangePages", "HeatEntry", "HeatReported", "LoseSession", "MissEntry"]
__all__ += ["PageGrant", "PageRevoke", "PagesAcknowledged", "RefuseReplay", "RequestAttached", "RequestDetached"]
__all__ += ["DRAM", "LOAD", "PREFETCH", "S3", "SAVE", "SSD", "WorkerGone"]
"""Re-exported words and messages of the row path; everything defined here is public as well."""
