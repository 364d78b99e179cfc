"""The blocking client against a real process behind a real socket."""

import os

import pytest

from flexkv_py.client import Client, Outcome, PagedLayout, create_memory
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import ROOT, keys_of_tokens, namespace_digest

from .conftest import GEOMETRY


def refused(code: ErrorCode):
    """Expect a FlexKVError with this code."""
    return pytest.raises(FlexKVError, match=rf"^\[{code.value}\]")


def register(client: Client, page_count: int = 16):
    """A paged memory of the test geometry."""
    layout = PagedLayout(GEOMETRY, page_count, page_tokens=16)
    descriptor = create_memory(layout.bytes)
    try:
        return client.register_memory(
            descriptor, bytes=layout.bytes, page_count=page_count, page_tokens=16, layout=layout.layers
        )
    finally:
        os.close(descriptor)


def test_a_turn_of_every_call(client):
    """Keys, match with a lease, register, save, wait, load by chunk, cancel, fence, release and unregister."""
    tokens = list(range(3 * 64 + 5))
    keys = client.keys(tokens)
    assert keys == keys_of_tokens(namespace_digest(GEOMETRY.fingerprint, "default", 0), tokens, 64)
    memory = register(client)
    saved = client.save(keys, range(12), memory, parent=ROOT, deadline_s=0.01).wait(timeout_s=2)
    assert saved.done
    assert saved.outcomes == [Outcome.LOADED]
    found = client.match(keys, hold_s=0.001)
    assert (found.length, found.runs[0].tier, found.runs[0].count) == (3, "dram", 3)
    ticket = client.load(keys, range(12), memory, deadline_s=5)
    assert not ticket.wait(chunk=client.chunk_count - 1).done
    ticket.cancel()
    assert ticket.wait().done
    client.fence(memory, [1, 2])
    client.prefetch(keys, deadline_s=0.001).wait()
    found.lease.release()
    memory.unregister()
    with refused(ErrorCode.UNKNOWN_MEMORY):
        client.fence(memory)
