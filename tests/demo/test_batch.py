"""Decode steps of many requests in one forward, and weights whose selections cluster."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from demo.batch import BatchDecoder, Member
from demo.cache import NoCache
from demo.decoding import Decoding, Job
from demo.dense import DenseStore
from demo.model import SparseTransformer
from demo.paged import PagedKV
from demo.shape import CHUNK_TOKENS
from demo.topics import topic_prompt
from demo.weights import WEIGHTS
from flexkvd.selections.statistics import Statistics, Summary
from flexkvd.selections.workload import Selection
from tests.demo.conftest import SMALL


def jobs(count: int, blocks: int = 3, new_tokens: int = 6) -> list[Job]:
    return [Job(seat, seat, topic_prompt(SMALL, blocks, seat, seed=2), new_tokens, 70 + seat) for seat in range(count)]


def test_no_bit_depends_on_who_else_is_in_the_batch(model: SparseTransformer, memory: PagedKV) -> None:
    """Requests decoded together give the tokens and logits that each gives alone, on its own seat."""
    work = jobs(4)
    store = DenseStore(model, memory, NoCache())
    together = Decoding(model, store).run(work)
    assert len({result.logits_digest for result in together.values()}) == len(work)
    for job in work:
        assert Decoding(model, store).run([job]) == {job.request: together[job.request]}


def test_requests_without_pages_wait_for_others_to_end(model: SparseTransformer, memory: PagedKV) -> None:
    """Where pages are few, requests run one after the other and come out the same."""
    work = jobs(5, blocks=7)
    decoding = Decoding(model, DenseStore(model, memory, NoCache()))
    results = decoding.run(work)
    assert decoding.running_most == 3  # of 48 pages of 32 tokens each takes 16
    roomy = PagedKV(SMALL.geometry("test"), page_tokens=64, page_count=40)
    assert Decoding(model, DenseStore(model, roomy, NoCache())).run(work) == results
    roomy.close()


def test_a_fed_token_leaves_rows_that_a_prefill_can_go_on_from(model: SparseTransformer, memory: PagedKV) -> None:
    """A step writes each member's rows at its own position, and nobody else's."""
    store = DenseStore(model, memory, NoCache())
    one, other = jobs(2)
    for job in (one, other):
        store.admit(job, list(job.prompt))
    position = len(one.prefix)
    before = memory.rows(0, 0).clone()
    BatchDecoder(model, store).step([Member(one.request, one.seat, 5, position), Member(other.request, 1, 6, position)])
    changed = (memory.rows(0, 0).view(torch.int16) != before.view(torch.int16)).any(dim=1).nonzero()
    assert len(changed) == 2
    for job in (one, other):
        store.leave(job)


def locality(kind: str) -> Summary:
    """Statistics of a short run with these weights."""
    torch.set_num_threads(1)
    model = SparseTransformer(SMALL, 11, 2048, WEIGHTS[kind])
    memory = PagedKV(SMALL.geometry("test"), page_tokens=64, page_count=48)
    statistics = Statistics([])

    def watch(group: int, member: Member, selected: torch.Tensor) -> None:
        positions = selected.numpy().astype(np.int32)
        statistics.add(Selection(member.position, member.request, group, member.position + 1, positions))

    Decoding(model, DenseStore(model, memory, NoCache()), watch).run(jobs(2, blocks=20, new_tokens=16))
    memory.close()
    return statistics.summary()


def test_selections_of_clustered_weights_cluster() -> None:
    """Topical weights select much the same rows of few pages from step to step; random ones do neither."""
    clustered, scattered = locality("clustered"), locality("random")
    assert clustered.overlaps[1] > 0.5
    assert scattered.overlaps[1] < 0.25
    assert clustered.pages_touched[8] < 0.5 < scattered.pages_touched[8]


@pytest.mark.parametrize("kind", sorted(WEIGHTS))
def test_weights_follow_their_seed(kind: str) -> None:
    """The same seed gives the same bits, another one others."""
    one, again, other = (WEIGHTS[kind](SMALL, seed) for seed in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["head"], other["head"])


def test_prompts_are_whole_blocks_and_a_tail() -> None:
    """A prompt's whole blocks can be cached; at least its last token is fed."""
    for number in range(20):
        prompt = topic_prompt(SMALL, 4, number, seed=1)
        assert 4 * CHUNK_TOKENS < len(prompt) <= 4 * CHUNK_TOKENS + 8
        assert prompt == topic_prompt(SMALL, 4, number, seed=1)
