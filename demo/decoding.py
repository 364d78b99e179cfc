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
from enum import Enum
from typing import Protocol

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


class Turnout(Enum):
    """What became of one request's part in a step."""

    DONE = "done"
    REPLAY = "replay"
    """Its sample is discarded: the same token is fed again."""
    HAND_BACK = "hand_back"
    """It is not attached any more: to be admitted again, at the position it had reached."""


class Store(RowStore, Protocol):
    """Where running requests live."""

    def admit(self, job: Job) -> int | None:
        """Take a request in; returns the position to be fed first, or None: there is no room before another ends."""
        ...

    def begin(self, wanted: Sequence[int]) -> list[int]:
        """Begin a step; returns those of the requests that take part. None: `wait`, then ask again."""
        ...

    def end(self, batch: Sequence[int]) -> list[Turnout]:
        """End the step; in the order of the batch."""
        ...

    def leave(self, job: Job, tokens: Sequence[int]) -> None:
        """The request has ended with these tokens, prompt included."""
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
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    replays: int = 0

    @property
    def over(self) -> bool:
        return len(self.tokens) == len(self.job.prompt) + self.job.new_tokens

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
        self.decode_s = 0.0
        """Wall seconds from the first step on, with whatever requests wait for in between."""

    def run(self, jobs: Sequence[Job]) -> dict[int, Decoded]:
        """Decode all of them to their end."""
        self._waiting.extend(_Running(job, list(job.prompt), 0) for job in jobs)
        results: dict[int, Decoded] = {}
        started = time.perf_counter()
        self._admit()
        while self._running:
            self._step()
            for ended in [each for each in self._running.values() if each.over]:
                del self._running[ended.job.request]
                self._store.leave(ended.job, ended.tokens)
                generated = ended.tokens[len(ended.job.prompt) :]
                results[ended.job.request] = Decoded(generated, ended.digest.hexdigest(), ended.replays)
            self._admit()
        assert not self._waiting, "a request fits nowhere, not even alone"
        self.decode_s = time.perf_counter() - started
        return results

    def _admit(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            position = self._store.admit(first.job)
            if position is None:
                return
            self._waiting.popleft()
            first.position = position
            self._running[first.job.request] = first
            self.running_most = max(self.running_most, len(self._running))

    def _step(self) -> None:
        batch = self._store.begin(list(self._running))
        if not batch:
            self._store.wait()
            return
        logits = self._decoder.step([self._running[request].member() for request in batch])
        self.steps += 1
        for request, turnout in zip(batch, self._store.end(batch), strict=True):
            each = self._running[request]
            if turnout is Turnout.DONE:
                row = logits[each.job.seat]
                each.digest.update(row.numpy().tobytes())
                each.position += 1
                if each.position == len(each.tokens):
                    each.tokens.append(sample(row, each.job.seed, each.position))
                continue
            each.replays += 1
            if turnout is Turnout.HAND_BACK:
                del self._running[request]
                self._waiting.append(each)
