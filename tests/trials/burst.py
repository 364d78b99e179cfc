"""Three times the DRAM saved in one burst by several clients at once: who was told `stored` finds it again."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flexkv_py.client import Client
from flexkv_py.core.messages import Outcome
from flexkv_py.keys import BlockKey

from .blocks import BLOCK_BYTES, GEOMETRY, Pages, chain
from .fleet import DaemonProcess

MIB = 1 << 20
CLIENTS = 4
CHAIN_BLOCKS = 32
STORY_EVENTS_PER_BLOCK = 32
ANSWERS = (Outcome.STORED, Outcome.THROTTLED, Outcome.REFUSED)

Answers = dict[int, tuple[BlockKey, Outcome]]
"""What a save answered, by the number of the block."""


def burst(folder: Path, *, dram_mib: int = 16, admission: str = "always", deadline_s: float = 10.0) -> dict[str, float]:
    """Save 3 × DRAM at once with SSD 5 × DRAM below, then read all of it back, newest first."""
    blocks = 3 * dram_mib * MIB // BLOCK_BYTES
    tables = {
        "dram": {"bytes": dram_mib * MIB, "segment_bytes": "4MiB"},
        "ssd": {"directory": str(folder / "ssd"), "bytes": 5 * dram_mib * MIB},
        "planner": {"admission": admission},
        "limits": {"story_events_max": blocks * STORY_EVENTS_PER_BLOCK},
    }
    with DaemonProcess(folder, tables) as daemon:
        begun = time.monotonic()
        answers = _save_all(daemon, blocks // CLIENTS, deadline_s)
        seconds = time.monotonic() - begun
        counts = Counter(outcome for _, outcome in answers.values())
        assert len(answers) == blocks // CLIENTS * CLIENTS
        assert set(counts) <= set(ANSWERS), f"a burst answered {dict(counts)}"
        assert counts[Outcome.STORED], "nothing was stored"
        vanished = _read_all(daemon, answers)
        if admission == "always":
            assert vanished == [], f"{len(vanished)} blocks were answered stored and are gone: {vanished[:5]}"
        for number in vanished:
            story = daemon.story(answers[number][0])
            assert ("evict", "dram") in story, f"block {number} vanished without a reason: {story}"
        daemon.settle()
        daemon.recount()
        return {
            "blocks": len(answers),
            **{outcome.value: counts[outcome] for outcome in ANSWERS},
            "vanished with their eviction told": len(vanished),
            "burst_s": seconds,
            "MiB_per_s": counts[Outcome.STORED] * BLOCK_BYTES / MIB / seconds,
        }


def _save_all(daemon: DaemonProcess, blocks_per_client: int, deadline_s: float) -> Answers:
    """All clients fill their memories first and then save at the same time, every ticket before any wait."""

    def prepare(number: int) -> tuple[Client, Pages]:
        client = Client(daemon.socket, GEOMETRY, timeout_s=60)
        client.connect()
        pages = Pages(client, blocks_per_client)
        pages.put_chain(0, number * blocks_per_client, blocks_per_client)
        return client, pages

    def save(number: int, pages: Pages) -> Answers:
        answers: Answers = {}
        tickets = []
        for place in range(0, blocks_per_client, CHAIN_BLOCKS):
            count = min(CHAIN_BLOCKS, blocks_per_client - place)
            keys = chain(pages.client, number * blocks_per_client + place, count)
            ticket = pages.client.save(keys, pages.pages(place, count), pages.memory, deadline_s=deadline_s)
            tickets.append((number * blocks_per_client + place, keys, ticket))
        for first, keys, ticket in tickets:
            outcomes = ticket.wait(timeout_s=60).outcomes
            assert len(outcomes) == len(keys), f"a save of {len(keys)} keys had no end in 60 s"
            answers |= {
                first + at: (key, outcome) for at, (key, outcome) in enumerate(zip(keys, outcomes, strict=True))
            }
        return answers

    with ThreadPoolExecutor(CLIENTS) as pool:
        workers = list(pool.map(prepare, range(CLIENTS)))
        answers: Answers = {}
        for part in pool.map(save, range(CLIENTS), [pages for _, pages in workers]):
            answers |= part
    for client, _ in workers:
        client.close()
    return answers


def _read_all(daemon: DaemonProcess, answers: Answers) -> list[int]:
    """Load every block that was answered `stored`, newest first; returns those that are a miss."""
    stored = [number for number, (_, outcome) in sorted(answers.items(), reverse=True) if outcome is Outcome.STORED]
    vanished = []
    with Client(daemon.socket, GEOMETRY, timeout_s=60) as client:
        pages = Pages(client, 1)
        for number in stored:
            pages.wipe(0)
            loaded = client.load([answers[number][0]], pages.pages(0, 1), pages.memory).wait(timeout_s=30)
            if loaded.outcomes == [Outcome.MISS]:
                vanished.append(number)
                continue
            assert loaded.outcomes == [Outcome.LOADED], f"block {number}: {loaded}"
            assert pages.wrong(0, [number]) == [], f"block {number} came back with wrong bytes"
    return vanished
