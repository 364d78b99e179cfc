"""Decoding over the row path of a real daemon: with less HBM and less DRAM than KV, and every bit the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from demo.cache import DaemonCache, NoCache
from demo.decoding import Decoded, Decoding, Job
from demo.dense import DenseStore
from demo.hbm import HotMemory
from demo.model import SparseTransformer
from demo.paged import PagedKV
from demo.shape import CHUNK_TOKENS
from demo.tiered import TieredStore
from demo.topics import topic_prompt
from demo.weights import WEIGHTS
from flexkv_py.errors import ErrorCode, FlexKVError
from tests.demo.conftest import SMALL
from tests.demo.test_with_daemon import Daemon

SHAPE = replace(SMALL, layers=8, layers_per_group=4, index_width=16)
"""Two groups; index keys, which stay in HBM, are a ninth of the KV."""

REQUESTS, BLOCKS, BLOCKS_MAX = 4, 16, 18
GEOMETRY = SHAPE.geometry("test")
MORE = "[row_path]\nabsent_replays_max = 1\n"
"""A step that fails for both groups, one after the other, is refused."""

KV_BYTES = REQUESTS * BLOCKS_MAX * GEOMETRY.block_bytes


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, dram_bytes="2MiB", more=MORE)
    yield daemon
    daemon.kill()


@pytest.fixture
def roomy_daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Its DRAM holds everything: no row is ever absent."""
    daemon = Daemon(tmp_path, dram_bytes="8MiB")
    yield daemon
    daemon.kill()


def model_of(weights: str) -> SparseTransformer:
    torch.set_num_threads(1)
    return SparseTransformer(SHAPE, 11, BLOCKS_MAX * CHUNK_TOKENS, WEIGHTS[weights])


def jobs(new_tokens: int, first: int = 0) -> list[Job]:
    return [
        Job(first + seat, seat, topic_prompt(SHAPE, BLOCKS, seat, seed=4), new_tokens, seat) for seat in range(REQUESTS)
    ]


def all_resident(model: SparseTransformer, daemon: Daemon, work: list[Job]) -> dict[int, Decoded]:
    """Computes and saves the prompts, too."""
    memory = PagedKV(GEOMETRY, CHUNK_TOKENS, REQUESTS * BLOCKS_MAX)
    cache = DaemonCache(str(daemon.socket), memory, "all-resident")
    results = Decoding(model, DenseStore(model, memory, cache)).run(work)
    cache.close()
    memory.close()
    return results


def same(one: dict[int, Decoded], other: dict[int, Decoded]) -> bool:
    first, second = ({key: (each.tokens, each.logits_digest) for key, each in found.items()} for found in (one, other))
    return first == second


def store_of(daemon: Daemon, hbm_bytes: int = KV_BYTES * 2 // 5) -> TieredStore:
    memory = HotMemory(SHAPE, GEOMETRY, hbm_bytes, REQUESTS, BLOCKS_MAX, slots=32)
    return TieredStore(memory, str(daemon.socket), "row-path")


def test_less_hbm_and_less_dram_than_kv_give_the_same_bits(daemon: Daemon) -> None:
    """Rows come from hot buffers, DRAM and SSD, and every token and logit is that of the all-resident run.

    Absent rows are met, every page asked for comes, and the block that filled up meanwhile is saved and found.
    """
    model = model_of("clustered")
    work = jobs(new_tokens=CHUNK_TOKENS + 6)
    daemon.wait_until_ready()
    reference = all_resident(model, daemon, work)
    store = store_of(daemon)
    decoding = Decoding(model, store)
    assert same(reference, decoding.run(work))
    arrivals = store.link.arrivals
    assert decoding.running_most == REQUESTS
    assert arrivals.absent > 0
    assert arrivals.on_demand + arrivals.ahead > 0
    assert sum(result.replays for result in reference.values()) == 0
    store.path.check()
    text = [*work[0].prompt, *reference[0].tokens]
    found = store.link.find(text[: (BLOCKS + 1) * CHUNK_TOKENS])
    assert len(found.keys) == BLOCKS + 1
    found.release()
    store.close()


def test_requests_that_cannot_get_their_rows_are_handed_back_and_admitted_again(daemon: Daemon) -> None:
    """With rows scattered over all blocks steps fail again and again, and some are refused; the bits stay the same."""
    model = model_of("random")
    work = jobs(new_tokens=3)
    daemon.wait_until_ready()
    reference = all_resident(model, daemon, work)
    store = store_of(daemon)
    decoding = Decoding(model, store)
    results = decoding.run(work)
    assert same(reference, results)
    assert sum(result.replays for result in results.values()) > 0
    assert decoding.handed_back > 0
    assert "too_many" in store.link.refusals
    store.path.check()
    store.close()


def test_what_is_not_cached_is_fed_and_saved_block_by_block(daemon: Daemon) -> None:
    """A prompt the daemon knows nothing of is fed token by token; each block is saved when full, and found again."""
    model = model_of("clustered")
    work = [Job(seat, seat, topic_prompt(SHAPE, 0, seat, seed=9), CHUNK_TOKENS, seat) for seat in range(2)]
    daemon.wait_until_ready()
    memory = PagedKV(GEOMETRY, CHUNK_TOKENS, 8)
    reference = Decoding(model, DenseStore(model, memory, NoCache())).run(work)
    memory.close()
    store = store_of(daemon)
    assert same(reference, Decoding(model, store).run(work))
    store.close()
    again = store_of(daemon)
    found = again.link.find([*work[0].prompt, *reference[0].tokens])
    assert len(found.keys) == 1
    found.release()
    again.close()


def test_a_request_stays_resident_while_there_are_pages(daemon: Daemon) -> None:
    """With pages for all no row is ever fetched; with pages for some the others decode from hot rows beside them."""
    model = model_of("clustered")
    daemon.wait_until_ready()
    reference = all_resident(model, daemon, jobs(new_tokens=4))
    roomy = store_of(daemon, 2 * KV_BYTES)
    assert same(reference, Decoding(model, roomy).run(jobs(new_tokens=4)))
    assert roomy.admissions == {"resident": REQUESTS}
    assert roomy.link.arrivals.hits + roomy.link.arrivals.misses == 0
    roomy.close()
    tight = store_of(daemon, KV_BYTES)
    assert same(reference, Decoding(model, tight).run(jobs(new_tokens=4)))
    assert tight.link.arrivals.misses > 0
    tight.close()


def test_a_hot_request_becomes_resident_when_others_have_ended(roomy_daemon: Daemon) -> None:
    """Once pages are free the request that misses is loaded into them while it decodes on, and misses no more."""
    model, daemon = model_of("clustered"), roomy_daemon
    daemon.wait_until_ready()
    work = [replace(job, new_tokens=40 if job.seat == REQUESTS - 1 else 2) for job in jobs(new_tokens=0)]
    reference = all_resident(model, daemon, work)
    store = store_of(daemon, KV_BYTES)
    assert same(reference, Decoding(model, store).run(work))
    assert store.admissions["hot"] > 0
    assert store.warmed > 0
    assert store.widened == 1
    store.path.check()
    assert store.path.pool.pages.free_count == store.memory.budget.page_count
    store.close()


def test_hbm_that_is_too_small_is_refused() -> None:
    """The refusal says how many pages are left, how many are needed, and what to do."""
    with pytest.raises(FlexKVError, match=r"leave \d+ pages for 4 requests, each needs 3: give more") as refusal:
        HotMemory(SHAPE, GEOMETRY, KV_BYTES // 10, REQUESTS, BLOCKS_MAX, slots=32)
    assert refusal.value.code is ErrorCode.BAD_ARGUMENT
