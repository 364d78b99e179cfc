"""Saves, matches and loads of real clients against a whole daemon: bytes, progress, fences, lifetimes."""

from collections.abc import Callable

from flexkv_py.client import Client

from .conftest import Worker


def test_what_one_worker_saved_another_loads(connect: Callable[..., Client]) -> None:
    """Blocks saved from one memory come back with the same bytes into other pages of another memory."""
    first, second = Worker(connect()), Worker(connect())
    first.fill(1)
    keys = first.client.keys(list(range(16 * 8)))
    assert len(keys) == 8
    saved = first.client.save(keys, first.pages(3, 8), first.memory).wait(timeout_s=5)
    assert saved.done
    assert {outcome.value for outcome in saved.outcomes} == {"stored"}
    found = second.client.match(keys)
    assert (found.length, [(run.tier, run.count) for run in found.runs]) == (8, [("dram", 8)])
    loaded = second.client.load(keys, second.pages(20, 8), second.memory).wait(timeout_s=5)
    assert {outcome.value for outcome in loaded.outcomes} == {"loaded"}
    for block in range(8):
        assert second.block_bytes(20 + block) == first.block_bytes(3 + block)
