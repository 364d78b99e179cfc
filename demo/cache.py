"""The engine's cache over the daemon's client, and what becomes of a failure: a miss, never an exception.

Owns one client, the registration of the worker's paged KV, and the account of what a request got from
the cache. Decides nothing about tokens. Called by `engine` through `KvCache`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from demo.engine import Load, LoadFellShortError, Save
from demo.paged import PagedKV, RequestKV
from flexkv_py.client import Client, MatchResult, Memory, Ticket
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import ROOT

_HOLD_S = 30.0
_LOAD_DEADLINE_S = 10.0
_SAVE_DEADLINE_S = 10.0
_ACKNOWLEDGED_AT = "ssd"
"""A save is over when the block would survive the daemon; `dram` would be over sooner and promise less."""


_FENCE_TRIES_MAX = 12
"""Each takes as long as the client's timeout, 5 s."""


_STILL_HELD = {ErrorCode.DEADLINE_EXCEEDED, ErrorCode.INTERNAL}
"""Errors of a fence that tell nothing of the copies: they may still run."""


class DemoCacheError(Exception):
    """The daemon could not give what a request rests on."""


class HungDaemonError(Exception):
    """Pages cannot be had back: the worker must end, as its memory is no longer its own."""


@dataclass
class CacheAccount:
    """What the cache did for one request."""

    hits: Counter[str] = field(default_factory=Counter)
    """Loaded blocks by the tier they came from."""
    saved: Counter[str] = field(default_factory=Counter)
    """Saved blocks by outcome."""
    errors: list[str] = field(default_factory=list)
    """Codes of the failures that were turned into misses."""


class NoCache:
    """Nothing is ever found or kept: how a worker runs without the daemon."""

    def load(self, tokens: Sequence[int], context: RequestKV) -> Load:  # noqa: ARG002 - the seam's signature
        return _NothingLoading()

    def save(self, tokens: Sequence[int], first_block: int, context: RequestKV) -> Save:  # noqa: ARG002
        return _NothingSaving()


class DaemonCache:
    """Loads and saves through flexkvd. Connects when first used; afterwards the client reconnects by itself."""

    def __init__(self, socket_path: str, memory: PagedKV, instance: str) -> None:
        self.account = CacheAccount()
        self._paged = memory
        self._client = Client(socket_path, memory.geometry, instance=instance)
        self._memory: Memory | None = None

    def load(self, tokens: Sequence[int], context: RequestKV) -> Load:
        """Match, lease what was found, and start its load."""
        self.account = CacheAccount()
        pages: list[int] = []  # those the daemon may have been told of
        try:
            memory = self._registered()
            keys = self._client.keys(tokens)
            found = self._client.match(keys, hold_s=_HOLD_S) if keys else None
            if found is None or not found.length:
                return _NothingLoading()
            pages = context.block_pages(0, found.length)
            ticket = self._client.load(keys[: found.length], pages, memory, deadline_s=_LOAD_DEADLINE_S)
        except FlexKVError as error:
            self.failed(error, pages)
            return _NothingLoading()
        return _DaemonLoad(self, ticket, found, pages)

    def save(self, tokens: Sequence[int], first_block: int, context: RequestKV) -> Save:
        """Start saving; the keys name their whole prefix, so any worker finds the blocks by its tokens."""
        pages: list[int] = []
        try:
            memory = self._registered()
            keys = self._client.keys(tokens)
            if first_block >= len(keys):
                return _NothingSaving()
            parent = keys[first_block - 1] if first_block else ROOT
            pages = context.block_pages(first_block, len(keys))
            ticket = self._client.save(keys[first_block:], pages, memory, parent, _SAVE_DEADLINE_S, _ACKNOWLEDGED_AT)
        except FlexKVError as error:
            self.failed(error, pages)
            return _NothingSaving()
        return _DaemonSave(self, ticket, pages)

    def close(self) -> None:
        self._client.close()

    def chunk_of_group(self, group: int) -> int:
        """The last chunk that must be here before layer group `group` can run."""
        wanted = self._paged.geometry.groups[group]
        return next(at for at, groups in enumerate(self._paged.geometry.chunk_groups) if wanted in groups)

    def failed(self, error: FlexKVError, pages: Sequence[int]) -> None:
        """Account for a failure that becomes a miss, and make sure of `pages`.

        A request that got no reply may run all the same: its pages may be written or freed only after
        a fence, or the daemon would read or write what is another request's by then.
        """
        self.note(error)
        if pages:
            self.fence(pages)

    def fence(self, pages: Sequence[int]) -> None:
        """Return once no copy touches `pages`."""
        assert self._memory is not None
        fence_pages(self._client, self._memory, pages, self.note)

    def note(self, error: FlexKVError) -> None:
        self.account.errors.append(error.code.value)

    def _registered(self) -> Memory:
        if self._memory is None:
            paged = self._paged
            self._client.connect()
            self._memory = self._client.register_memory(
                paged.descriptor,
                bytes=paged.layout.bytes,
                page_count=paged.page_count,
                page_tokens=paged.page_tokens,
                layout=paged.layout.layers,
            )
        return self._memory


def fence_pages(
    client: Client, memory: Memory, pages: Sequence[int], note: Callable[[FlexKVError], None] = lambda _: None
) -> None:
    """Return once no copy touches `pages`, whatever becomes of the daemon; `note` hears of failures on the way."""
    for _ in range(_FENCE_TRIES_MAX):
        try:
            return client.fence(memory, pages)
        except FlexKVError as error:
            note(error)
            if error.code not in _STILL_HELD:
                # The daemon that was told of the pages is gone, its copy threads too: the kernel closes a
                # process's sockets after its last thread. Its successor, refusing us or not, never knew them.
                return None
    raise HungDaemonError(f"the daemon has held {len(pages)} pages for too long and neither answers nor ends")


class _NothingLoading:
    blocks = 0

    def wait_group(self, group: int) -> None:
        """Nothing to wait for."""

    def wait_end(self) -> None:
        """Nothing to wait for."""


class _NothingSaving:
    def wait_end(self) -> None:
        """Nothing to wait for."""


class _DaemonLoad:
    """A load ticket: layer group by layer group, then its end."""

    def __init__(self, cache: DaemonCache, ticket: Ticket, found: MatchResult, pages: list[int]) -> None:
        self.blocks = found.length
        self._cache, self._ticket, self._found, self._pages = cache, ticket, found, pages

    def wait_group(self, group: int) -> None:
        self._wait(self._cache.chunk_of_group(group))

    def wait_end(self) -> None:
        self._wait(None)
        self._conclude(self.blocks)

    def _wait(self, chunk: int | None) -> None:
        try:
            progress = self._ticket.wait(chunk)
        except FlexKVError as error:
            self._cache.note(error)
            self._fall_short(0)
        else:
            if progress.done and progress.length < self.blocks:
                self._fall_short(progress.length)

    def _fall_short(self, blocks: int) -> NoReturn:
        self._cache.fence(self._pages)
        self._conclude(blocks)
        raise LoadFellShortError(blocks)

    def _conclude(self, blocks: int) -> None:
        """Credit the first `blocks` blocks to the tiers that the match named, and end the lease."""
        for run in self._found.runs:
            self._cache.account.hits[run.tier] += min(run.count, max(blocks, 0))
            blocks -= run.count
        try:
            if self._found.lease is not None:
                self._found.lease.release()
        except FlexKVError as error:
            self._cache.note(error)


class _DaemonSave:
    """A save ticket; its pages are free once it is over or fenced."""

    def __init__(self, cache: DaemonCache, ticket: Ticket, pages: list[int]) -> None:
        self._cache, self._ticket, self._pages = cache, ticket, pages

    def wait_end(self) -> None:
        try:
            progress = self._ticket.wait()
        except FlexKVError as error:
            self._cache.failed(error, self._pages)
        else:
            self._cache.account.saved.update(outcome.value for outcome in progress.outcomes)
