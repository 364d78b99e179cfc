"""A row path's side of the daemon: what one says to the other between steps, and blocks on their way.

Owns the client, the registration of the worker's memory, tickets that nobody waits for, and the account of what
came when. Decides nothing: `RowPath` says what to ask, save and acknowledge. Called by `tiered`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from queue import Empty, SimpleQueue

from demo.cache import DemoCacheError, fence_pages
from demo.hbm import HotMemory
from demo.row_figures import Arrivals
from demo.shape import CHUNK_TOKENS
from flexkv_py.client import Client, Lease, ReplayRefused, RowRequest, Ticket
from flexkv_py.errors import FlexKVError
from flexkv_py.keys import ROOT, BlockKey
from flexkv_tiers.hbm.newest import SaveOrder, SaveOutcome
from flexkv_tiers.hbm.packing import pack_absents, pack_counts, pack_heat, pack_replayed, unpack_pages
from flexkv_tiers.hbm.replay import Part
from flexkv_tiers.hbm.requests import HotCount
from flexkv_tiers.hbm.worker import Outcome, RowPath
from flexkv_tiers.memory.row_arena import RowArena

_HOLD_S = 30.0
_DEADLINE_S = 30.0
_PATIENCE_S = 0.01
"""What is waited for is waited for in parts, and page changes are acknowledged between them."""

_SAVES_WAITED_FOR = 4
"""Threads that wait for the ends of saves: more saves under way only wait longer for one."""

_ACKNOWLEDGED_AT = "ssd"
"""A block whose page is given up must survive; `dram` would be over sooner and promise less."""

_OUTCOMES = {"stored": SaveOutcome.STORED, "present": SaveOutcome.STORED, "throttled": SaveOutcome.THROTTLED}


@dataclass
class Found:
    """What the cache has of a prefix, kept usable until `release`."""

    keys: list[BlockKey]
    lease: Lease | None

    def release(self) -> None:
        if self.lease is not None:
            self.lease.release()


@dataclass
class _Attached:
    """A request of the row path as the daemon knows it."""

    keys: list[BlockKey]
    """Of its blocks, all saved or on their way."""
    row: RowRequest | None = None
    attached: int = 0
    saved: set[int] = field(default_factory=set)
    """Blocks beyond those attached whose saves have ended well."""
    asked: set[Part] = field(default_factory=set)
    """What its failed step waits for, or has waited for: pinned until the step is done."""


class RowsLink:
    """One worker's link; every method but the waiting of saves is called by one thread."""

    def __init__(self, path: RowPath, memory: HotMemory, socket_path: str, instance: str) -> None:
        self.arrivals = Arrivals(memory.geometry.chunk_count)
        self.refusals: list[str] = []
        """What the daemon refused to bring in, in its words; taken by `tiered`."""
        self._path, self._memory = path, memory
        self._client = Client(socket_path, memory.geometry, instance=instance)
        self._client.connect()
        self._registered = self._client.register_memory(
            memory.descriptor,
            bytes=memory.bytes,
            page_count=memory.page_count,
            page_tokens=CHUNK_TOKENS,
            layout=memory.layout,
        )
        self._arena = RowArena()
        self._arena.open(self._client.map_arena(writable=self._arena.writable), path)
        self._requests: dict[int, _Attached] = {}
        self._ended: SimpleQueue[tuple[SaveOrder, SaveOutcome]] = SimpleQueue()
        self._waiting = ThreadPoolExecutor(_SAVES_WAITED_FOR, "save")
        self._saving = 0
        self._widening: dict[int, tuple[dict[int, int], Ticket]] = {}
        """Request, which may have ended, → pages that a load still writes (block → page)."""
        self._counts: list[HotCount] = []
        """What was counted since the last report."""

    # ---------------------------------------------------------------- blocks

    def find(self, tokens: Sequence[int]) -> Found:
        """The longest cached prefix of whole blocks."""
        keys = self._client.keys(tokens)
        if not keys:
            return Found([], None)
        found = self._client.match(keys, hold_s=_HOLD_S)
        return Found(keys[: found.length], found.lease)

    def load(self, keys: Sequence[BlockKey], pages: dict[int, int]) -> None:
        """Copy whole blocks (block → page) in; returns when they are. Raises DemoCacheError."""
        ticket = self._start_load(keys, pages)
        while not (ended := ticket.wait(timeout_s=_PATIENCE_S)).done:
            self._take_pages()  # its room may be what other requests are asked to give up
        if ended.length < len(pages):
            raise DemoCacheError(f"only {ended.length} of {len(pages)} blocks were loaded")

    def load_index(self, row: int, keys: Sequence[BlockKey]) -> None:
        """Bring the index keys of all these blocks in, through the staging pages."""
        staging = self._memory.staging
        for first in range(0, len(keys), len(staging)):
            pages = dict(zip(range(first, len(keys)), staging, strict=False))
            self.load(keys, pages)
            self._memory.keep_index(row, pages)

    # -------------------------------------------------------------- requests

    def attach(self, request: int, found: Found) -> None:
        """Let the request read what is in DRAM of its blocks from now on."""
        self._requests[request] = each = _Attached(list(found.keys))
        self.arrivals.attach(request, len(found.keys))
        if found.keys:
            each.row, each.attached = self._client.attach(request, found.keys), len(found.keys)
        found.release()

    def detach(self, request: int, tokens: Sequence[int]) -> None:
        """End a request; its full blocks are saved, whose rows are those of `tokens`."""
        each = self._requests[request]
        self._name_blocks(each, tokens)
        row = self._path.pool.rooms[request].row
        self._take_counts()
        for order in self._path.detach(request, save=True):
            self._save(each, order, row)
        del self._requests[request]
        self.arrivals.detach(request)
        if each.row is not None:
            each.row.detach()

    def keys_of(self, request: int) -> list[BlockKey]:
        return self._requests[request].keys

    def has_pages(self, request: int) -> bool:
        """True once the daemon has told what lies in DRAM of the request's blocks."""
        return self.arrivals.is_listed(request)

    @property
    def asking(self) -> set[int]:
        """Requests whose step has failed and is not done yet."""
        return {request for request, each in self._requests.items() if each.asked}

    # --------------------------------------------------------- between steps

    def exchange(self, tokens_of: Callable[[int], Sequence[int]]) -> list[tuple[int, Outcome]]:
        """Everything both have to say, without waiting; returns requests whose step was given up, and what now."""
        self._take_pages()
        given_up = self._take_refusals()
        self._end_saves()
        self._end_widening()
        for order in self._path.take_saves():
            each = self._requests[order.request]
            self._name_blocks(each, tokens_of(order.request))
            self._save(each, order, self._path.pool.rooms[order.request].row)
        self._ask()
        return given_up

    def wait(self, timeout_s: float) -> None:
        """Return when pages have changed, or after a while."""
        self._client.wait_for_pages(timeout_s)

    def report_heat(self) -> list[HotCount]:
        """Tell what was selected and missed since the last time; nobody waits for it. Returns what was counted."""
        self._take_counts()
        counts, self._counts = [each for each in _sums(self._counts) if each.request in self._requests], []
        self._client.report(entries=pack_heat(self._path.take_heat()), misses=pack_counts(counts))
        return counts

    def widen(self, request: int) -> None:
        """Load what the request, which goes on, is to have in pages."""
        pages = self._path.loading(request)
        self._widening[request] = pages, self._start_load(self.keys_of(request), pages)

    def end_copies(self) -> None:
        """Wait for all saves and loads under way."""
        while self._saving or self._widening:
            self._take_pages()  # their room may be what requests are asked to give up
            self._end_saves(_PATIENCE_S)
            self._end_widening(_PATIENCE_S)

    def close(self) -> None:
        """Wait for what is under way, then end the session."""
        self.end_copies()
        self._waiting.shutdown()
        self._arena.close()
        self._client.close()

    def _take_counts(self) -> None:
        counts = self._path.take_counts()
        self.arrivals.count(counts)
        self._counts += counts

    def _take_pages(self) -> None:
        changes = self._client.page_changes()
        for pages in changes:
            change = unpack_pages(pages.request, pages.version, pages.granted, pages.revoked)
            self.arrivals.changed(change, self._requests[change.request].asked)
            self._path.receive(change)
        if changes:
            self._path.switch()
        for request, version in self._path.take_acks():
            row = self._requests[request].row if request in self._requests else None
            if row is not None:
                row.ack(version)

    def _take_refusals(self) -> list[tuple[int, Outcome]]:
        given_up = []
        for message in self._client.poll():
            if isinstance(message, ReplayRefused):
                self.refusals.append(message.outcome)
                outcome = self._path.refuse(message.request)
                if outcome is not None:
                    given_up.append((message.request, outcome))
        return given_up

    def _ask(self) -> None:
        """What failed steps need, which pins it; and which steps have succeeded, which ends that."""
        asks, replayed = self._path.take_asks(), self._path.take_replayed()
        for request, part in asks:
            self._requests[request].asked.add(part)
        for request in replayed:
            self._requests[request].asked.clear()
        self.arrivals.absent += len(asks)
        if asks or replayed:
            self._client.report(absents=pack_absents(asks), replayed=pack_replayed(replayed))

    # ------------------------------------------------------- loads and saves

    def _start_load(self, keys: Sequence[BlockKey], pages: dict[int, int]) -> Ticket:
        wanted = [keys[block] for block in pages]
        return self._client.load(wanted, list(pages.values()), self._registered, deadline_s=_DEADLINE_S)

    def _end_widening(self, patience_s: float = 0.0) -> None:
        """What a load did not bring is read through the hot buffer as before, if the request still can."""
        for request, (pages, ticket) in list(self._widening.items()):
            ended = ticket.wait(timeout_s=patience_s)
            if ended.done:
                del self._widening[request]
                if not self._path.load_ended(request, pages, whole=ended.length == len(pages)):
                    raise DemoCacheError(f"only {ended.length} of {len(pages)} blocks were loaded")

    def _name_blocks(self, each: _Attached, tokens: Sequence[int]) -> None:
        count = len(tokens) // CHUNK_TOKENS
        if count > len(each.keys):
            parent = each.keys[-1] if each.keys else ROOT
            each.keys += self._client.keys(tokens[len(each.keys) * CHUNK_TOKENS :], parent)

    def _save(self, each: _Attached, order: SaveOrder, row: int) -> None:
        """Start it, and let a thread wait for its end; `row` has the index keys."""
        self._memory.stage_index(row, order.block, order.page)
        parent = each.keys[order.block - 1] if order.block else ROOT
        self._saving += 1
        self._waiting.submit(self._save_and_wait, order, each.keys[order.block], parent)

    def _save_and_wait(self, order: SaveOrder, key: BlockKey, parent: BlockKey) -> None:
        try:
            ticket: Ticket = self._client.save(
                [key], [order.page], self._registered, parent, _DEADLINE_S, _ACKNOWLEDGED_AT
            )
            (outcome,) = ticket.wait().outcomes
        except FlexKVError:
            fence_pages(self._client, self._registered, [order.page])
            self._ended.put((order, SaveOutcome.THROTTLED))
        else:
            self._ended.put((order, _OUTCOMES.get(outcome.value, SaveOutcome.REFUSED)))

    def _end_saves(self, patience_s: float = 0.0) -> None:
        """Give the pages of ended saves back, and attach what was saved in the order of blocks."""
        while self._saving:
            try:
                order, outcome = self._ended.get(timeout=patience_s)
            except Empty:
                return
            self._saving -= 1
            self._path.save_ended(order.request, order.block, outcome)
            each = self._requests.get(order.request)
            if each is not None and outcome is SaveOutcome.STORED:
                each.saved.add(order.block)
                self._extend(order.request, each)

    def _extend(self, request: int, each: _Attached) -> None:
        while each.attached in each.saved:
            each.saved.remove(each.attached)
            key = [each.keys[each.attached]]
            if each.row is None:
                each.row = self._client.attach(request, key)
            else:
                each.row.extend(key)
            each.attached += 1


def _sums(counts: Sequence[HotCount]) -> list[HotCount]:
    """One entry per request and group."""
    found = []
    by_place = sorted(counts, key=_place_of)
    for place, each in groupby(by_place, _place_of):
        same = list(each)
        found.append(HotCount(*place, sum(one.hits for one in same), sum(one.misses for one in same)))
    return found


def _place_of(count: HotCount) -> tuple[int, int]:
    return count.request, count.group
