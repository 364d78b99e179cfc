"""What the planner hears from workers of the row path, what it tells them, and words of row policies; in one place.

A *request* here is a running request of an engine, by a number its workers chose; messages that are to be answered
carry the number of the message besides (`asked`). Blocks are named by their position in the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, NewType

from flexkv_py.errors import ErrorCode
from flexkv_py.keys import BlockKey
from flexkv_py.words import ReplayOutcome

# ------------------------------------------------------------------ events


@dataclass(slots=True)
class RequestAttached:
    """A running request of the row path has these blocks, from position `first` on.

    `request` is the worker's own number; a second attach of it extends it, and other ranks of the instance attach it
    too. The keys are distinct (checked at the edge). `asked` names the message to answer.
    """

    session: int
    asked: int
    request: int
    first: int
    keys: list[BlockKey]
    now_ns: int


@dataclass(slots=True)
class RequestDetached:
    """The session reads nothing of this request any more; it has no step in flight."""

    session: int
    asked: int
    request: int
    now_ns: int


@dataclass(slots=True)
class PagesAcknowledged:
    """No step of this session that could see a page table older than `version` is in flight."""

    session: int
    request: int
    version: int
    now_ns: int
    asked: int = 0
    """The message to answer; 0 when none is."""


class HeatEntry(NamedTuple):
    """How often one chunk's groups selected rows of one block (`block`: its position in the request)."""

    request: int
    block: int
    chunk: int
    selected: int


class AbsentEntry(NamedTuple):
    """A row that a step needed and that was not in DRAM."""

    request: int
    block: int
    chunk: int


class MissEntry(NamedTuple):
    """What the hot buffer of one request and layer group found and did not find."""

    request: int
    group: int
    hits: int
    misses: int


@dataclass(slots=True)
class HeatReported:
    """What one session's indexers selected since its last report. The edge turns layer groups into chunks.

    `absents` failed a step: they are to come, and stay until the step's request is in `replayed`, which has the
    requests whose failed step has succeeded since.
    """

    session: int
    entries: list[HeatEntry]
    absents: list[AbsentEntry]
    replayed: list[int]
    misses: list[MissEntry]
    now_ns: int


@dataclass(slots=True)
class WorkerGone:
    """The process of a session that is closed has ended: nothing maps the arena for it any more."""

    session: int
    now_ns: int


RowEvent = RequestAttached | RequestDetached | PagesAcknowledged | HeatReported | WorkerGone


# ------------------------------------------------------------ instructions


@dataclass(slots=True)
class AttachAnswered:
    """A request is attached or extended. Its page table is as of `version`; what may be read comes as ChangePages."""

    session: int
    asked: int
    request: int
    version: int


class PageGrant(NamedTuple):
    """This chunk of the block at this position may be read in this frame (the number of its first 4 KiB page)."""

    block: int
    chunk: int
    frame: int


class PageRevoke(NamedTuple):
    """This chunk of the block at this position may not be read any more, once the version is acknowledged."""

    block: int
    chunk: int


@dataclass(slots=True)
class ChangePages:
    """Tell a worker what its steps may read from `version` on; first what is revoked, then what is granted."""

    session: int
    request: int
    version: int
    granted: list[PageGrant]
    revoked: list[PageRevoke]


@dataclass(slots=True)
class RefuseReplay:
    """What a request's failed step needs will not come: `message` says why and what to do instead."""

    session: int
    request: int
    outcome: ReplayOutcome
    message: str


@dataclass(slots=True)
class LoseSession:
    """Tell the client this error and close its socket: it did not keep a promise others depend on."""

    session: int
    code: ErrorCode
    message: str


RowInstruction = AttachAnswered | ChangePages | RefuseReplay | LoseSession

# ------------------------------------------------------- what policies speak of

RequestId = NewType("RequestId", int)
"""The planner's own number of a running request: engines may use the same numbers, and one engine them again."""


class Place(NamedTuple):
    """One chunk of the block at one position of a running request."""

    request: RequestId
    block: int
    chunk: int


class Reason(StrEnum):
    """Why a chunk is thought to be needed soon."""

    SIBLING = "sibling"
    """A step fails for another chunk of the same block, and layer groups resemble each other."""
    TURN = "turn"
    """The request was idle and takes steps again; the chunk was among its hottest."""
    RISING = "rising"
    """Its rows are selected, and as yet found in the hot buffer."""

    @property
    def urgent(self) -> bool:
        """A step that fails now is likely to fail for it next: a prefetch with a deadline, not speculation."""
        return self in (Reason.SIBLING, Reason.TURN)


class Hunch(NamedTuple):
    """A chunk that is not granted and is thought to be needed soon."""

    place: Place
    reason: Reason
