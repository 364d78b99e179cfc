"""The demo's claim: no bit of the output depends on what was cached, where it lies, or who computed it."""

from __future__ import annotations

import random

import pytest
import torch

from demo.engine import Engine, Generation
from demo.model import SparseTransformer
from demo.paged import PagedKV
from demo.shape import CHUNK_TOKENS
from tests.demo.conftest import SMALL, DictCache

BLOCKS = 6
NEW_TOKENS = 3


def prompt_of(length: int, seed: int = 3) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(SMALL.vocabulary) for _ in range(length)]


def run(engine: Engine, prompt: list[int], cache: DictCache, new_tokens: int = NEW_TOKENS) -> Generation:
    return engine.generate(prompt, new_tokens, seed=5, cache=cache)


def same(one: Generation, other: Generation) -> bool:
    return (one.tokens, one.logits_digest) == (other.tokens, other.logits_digest)


@pytest.mark.parametrize("tail", [1, 17, 64])
def test_every_split_gives_the_same_bits(engine: Engine, tail: int) -> None:
    """For every k, loading k blocks and computing the rest gives the logits of computing everything."""
    prompt = prompt_of(BLOCKS * CHUNK_TOKENS + tail)
    cache = DictCache()
    reference = run(engine, prompt, cache)
    for loaded in range(BLOCKS + 1):
        cache.limit = loaded
        split = run(engine, prompt, cache)
        assert split.loaded_blocks == loaded
        assert same(split, reference), f"{loaded} of {BLOCKS} blocks loaded"


def test_the_place_of_a_page_does_not_matter(model: SparseTransformer, engine: Engine) -> None:
    """Another worker with other, scattered pages gives the same bits, from scratch and from loaded blocks."""
    prompt = prompt_of(BLOCKS * CHUNK_TOKENS + 9)
    cache = DictCache()
    reference = run(engine, prompt, cache)
    elsewhere = PagedKV(SMALL.geometry("test"), page_tokens=16, page_count=128)
    random.Random(8).shuffle(elsewhere._free)
    other = Engine(model, elsewhere)
    assert same(run(other, prompt, DictCache()), reference)
    assert same(run(other, prompt, cache), reference)
    elsewhere.close()


def test_a_decoded_token_leaves_the_kv_of_a_prefilled_one(engine: Engine) -> None:
    """A turn that loads blocks which the turn before decoded equals one that prefills those tokens."""
    prompt = prompt_of(2 * CHUNK_TOKENS + 30)
    cache = DictCache()
    first = run(engine, prompt, cache, new_tokens=2 * CHUNK_TOKENS)
    longer = [*prompt, *first.tokens, *prompt_of(20, seed=4)]
    follow_up = run(engine, longer, cache)
    assert follow_up.loaded_blocks == (len(prompt) + 2 * CHUNK_TOKENS - 1) // CHUNK_TOKENS
    assert same(follow_up, run(engine, longer, DictCache()))


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("whole", [0, 3])
def test_a_load_that_falls_short_is_computed_instead(engine: Engine, whole: int, group: int) -> None:
    """When a load ends early, even with some groups already used, the rest is computed to the same bits."""
    prompt = prompt_of(BLOCKS * CHUNK_TOKENS + 9)
    cache = DictCache(fails_at_group=group)
    reference = run(engine, prompt, cache)
    cache.whole = whole
    short = run(engine, prompt, cache)
    assert short.recomputed
    assert short.loaded_blocks == whole
    assert same(short, reference)


def test_an_unwritten_row_would_be_noticed(engine: Engine, memory: PagedKV) -> None:
    """A cache that claims a block without bringing its bytes spoils the logits: the comparison has teeth."""
    prompt = prompt_of(BLOCKS * CHUNK_TOKENS + 9)
    cache = DictCache()
    reference = run(engine, prompt, cache)
    last_block = next(rows for tokens, rows in cache.blocks.items() if len(tokens) == BLOCKS * CHUNK_TOKENS)
    last_block[0][-1, 0] = torch.nextafter(last_block[0][-1, 0], torch.tensor(9.0, dtype=torch.bfloat16))
    assert not same(run(engine, prompt, cache), reference)
    for rows in last_block:
        rows.fill_(float("nan"))
    assert not same(run(engine, prompt, cache), reference)
    assert memory.free_count == memory.page_count


def test_a_generation_repeats_and_follows_its_seed(engine: Engine) -> None:
    """The same request twice gives the same bits; another sampling seed gives other tokens."""
    prompt = prompt_of(3 * CHUNK_TOKENS)
    assert same(run(engine, prompt, DictCache(), 12), run(engine, prompt, DictCache(), 12))
    assert engine.generate(prompt, 12, 6, DictCache()).tokens != run(engine, prompt, DictCache(), 12).tokens
