"""Decoding many requests at once: who is admitted, whose step counts, when a request has ended.

Owns the loop and each request's tokens. A request's whole blocks come from a prefill; what is left of its prompt
is fed token by token, like what it generates. Where rows lie, and which steps must run again, is a
`Store`'s business (`dense`, `tiered`). Called by `decoder`, the worker process.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from demo.batch import BatchDecoder, Member, RowStore, Watch
from demo.model import SparseTransformer, sample
from demo.shape import CHUNK_TOKENS


@dataclass(frozen=True)
class Job:
    """Generate `new_tokens` tokens after `prompt`; `request` numbers it, and `seat` is its row in every forward."""

    request: int
    seat: int
    prompt: Sequence[int]
    new_tokens: int
    seed: int

    @property
    def prefix(self) -> Sequence[int]:
        """The whole blocks of the prompt; its last token is fed, as its logits are wanted."""
        return self.prompt[: (len(self.prompt) - 1) // CHUNK_TOKENS * CHUNK_TOKENS]


class Store(RowStore, Protocol):
    """Where running requests live."""

    def admit(self, job: Job, tokens: Sequence[int]) -> int | None:
        """Take a request in; returns the position to be fed first, or None: there is no room before another ends.

        `tokens` is prompt and answer so far, and grows as the request goes on.
        """
        ...

    def begin(self, wanted: Sequence[int]) -> list[int]:
        """Begin a step; returns those of the requests that take part. None: `wait`, then ask again."""
        ...

    def end(self, batch: Sequence[int]) -> list[bool]:
        """End the step; whose part in it counts, in the order of the batch. The others feed the same token again."""
        ...

    def leave(self, job: Job) -> None:
        """The request has ended."""
        ...

    def take_handed_back(self) -> list[int]:
        """Requests that had to be let go since the last time: they are to be admitted again."""
        ...

    def wait(self) -> None:
        """Return when something may have changed, after a limited time at most."""
        ...


@dataclass
class Decoded:
    """What one request gave."""

    tokens: list[int] = field(default_factory=list)
    logits_digest: str = ""
    """SHA-256 over the bits of the logits of every step that counted."""
    replays: int = 0


@dataclass
class _Running:
    job: Job
    tokens: list[int]
    position: int  # the token there is fed next
    fed: int = 0  # tokens whose logits are in the digest
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    replays: int = 0

    @property
    def over(self) -> bool:
        return len(self.tokens) == len(self.job.prompt) + self.job.new_tokens

    def take(self, logits: Tensor) -> None:
        """The logits of the token fed last. One that is fed again after a hand-back gives nothing new."""
        self.position += 1
        if self.position > self.fed:
            self.fed = self.position
            self.digest.update(logits.numpy().tobytes())
        if self.position == len(self.tokens):
            self.tokens.append(sample(logits, self.job.seed, self.position))

    def member(self) -> Member:
        return Member(self.job.request, self.job.seat, self.tokens[self.position], self.position)


class Decoding:
    """One run of many requests over one store."""

    def __init__(self, model: SparseTransformer, store: Store, watch: Watch | None = None) -> None:
        self._store = store
        self._decoder = BatchDecoder(model, store, watch)
        self._running: dict[int, _Running] = {}
        self._waiting: deque[_Running] = deque()
        self.steps = 0
        self.running_most = 0
        self.turns = 0
        """Requests' parts in all steps: `turns / steps` is the mean batch."""
        self.handed_back = 0
        self.wall_s = 0.0
        """From the first admission to the last token."""
        self.busy_s = 0.0
        """CPU seconds of this thread in steps, and wall seconds it waited for the daemon between them.

        What the same run would take on a core of its own, admissions aside; wall time says that only on a quiet
        machine."""

    def run(self, jobs: Sequence[Job]) -> dict[int, Decoded]:
        """Decode all of them to their end."""
        self._waiting.extend(_Running(job, list(job.prompt), 0) for job in jobs)
        results: dict[int, Decoded] = {}
        started = time.perf_counter()
        self._admit()
        while self._running:
            self._step()
            self._take_back()
            for ended in [each for each in self._running.values() if each.over]:
                del self._running[ended.job.request]
                self._store.leave(ended.job)
                generated = ended.tokens[len(ended.job.prompt) :]
                results[ended.job.request] = Decoded(generated, ended.digest.hexdigest(), ended.replays)
            self._admit()
        assert not self._waiting, "a request fits nowhere, not even alone"
        self.wall_s = time.perf_counter() - started
        return results

    def _admit(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            position = self._store.admit(first.job, first.tokens)
            if position is None:
                return
            self._waiting.popleft()
            first.position = position
            self._running[first.job.request] = first
            self.running_most = max(self.running_most, len(self._running))

    def _take_back(self) -> None:
        for request in self._store.take_handed_back():
            self.handed_back += 1
            self._waiting.append(self._running.pop(request))

    def _step(self) -> None:
        computing = time.thread_time()
        batch = self._store.begin(list(self._running))
        if not batch:
            waiting = time.perf_counter()
            self._store.wait()
            self.busy_s += time.perf_counter() - waiting
            return
        logits = self._decoder.step([self._running[request].member() for request in batch])
        self.steps += 1
        self.turns += len(batch)
        for request, counts in zip(batch, self._store.end(batch), strict=True):
            each = self._running[request]
            if counts:
                each.take(logits[each.job.seat])
            else:
                each.replays += 1
        self.busy_s += time.thread_time() - computing
