"""The asyncio client against the same real process, on asyncio's own loop and on uvloop."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from flexkv_py.client import PagedLayout, create_memory
from flexkv_py.client.aio import AsyncClient
from flexkv_py.errors import ErrorCode, FlexKVError

from .conftest import GEOMETRY
from .echo_daemon import SAY_FAREWELL, STOP_READING

Scene = Callable[[AsyncClient], Awaitable[None]]


@pytest.fixture(params=[asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def play(request, daemon):
    """Run a scene with a connected client."""

    def run(scene: Scene, timeout_s: float = 2.0) -> None:
        async def main() -> None:
            async with AsyncClient(daemon.path, GEOMETRY, timeout_s=timeout_s) as client:
                await scene(client)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run


async def refusal_of(call: Awaitable[object]) -> ErrorCode:
    """The code with which a call fails."""
    with pytest.raises(FlexKVError) as refusal:
        await call
    return refusal.value.code


async def register(client: AsyncClient):
    layout = PagedLayout(GEOMETRY, 16, page_tokens=16)
    descriptor = create_memory(layout.bytes)
    try:
        return await client.register_memory(
            descriptor, bytes=layout.bytes, page_count=16, page_tokens=16, layout=layout.layers
        )
    finally:
        os.close(descriptor)


def test_a_turn_of_every_call(play):
    """Match with a lease, register, save, load by chunk, cancel, fence, flush, release and unregister."""

    async def scene(client: AsyncClient) -> None:
        keys = client.keys(range(3 * 64))
        memory = await register(client)
        assert (await (await client.save(keys, range(12), memory, deadline_s=0.01)).wait(timeout_s=2)).done
        found = await client.match(keys, hold_s=0.001)
        assert (found.length, found.runs[0].count) == (3, 3)
        ticket = await client.load(keys, range(12), memory)
        assert not (await ticket.wait(chunk=0)).done
        assert not (await ticket.wait(timeout_s=0.05)).done
        await ticket.cancel()
        assert (await ticket.wait()).done
        await client.fence(memory)
        await client.flush(deadline_s=0.003)
        assert [message.reason for message in client.poll()] == ["0", "1", "2"]
        await found.lease.release()
        await memory.unregister()
        assert await refusal_of(client.fence(memory)) is ErrorCode.UNKNOWN_MEMORY
        await client.ping()

    play(scene)


def test_tasks_share_one_socket(play):
    """Replies that come out of order reach the task that asked."""

    async def scene(client: AsyncClient) -> None:
        keys = client.keys(range(64 * 30))
        asked = [client.match(keys[:count], hold_s=(count * 7 % 5) / 100) for count in range(30)]
        assert [found.length for found in await asyncio.gather(*asked)] == list(range(30))
        assert (await client.match([bytes(16)] * 200_000)).length == 200_000

    play(scene)


def test_a_killed_daemon_fails_everything_and_comes_back(play, daemon):
    """Waiting tasks get DAEMON_LOST at once; after a restart the next call connects and memories are back."""

    async def scene(client: AsyncClient) -> None:
        memory, keys, boot = await register(client), client.keys(range(64)), client.boot
        ticket = await client.load(keys, range(4), memory, deadline_s=30)
        waiting = [asyncio.ensure_future(refusal_of(ticket.wait())) for _ in range(3)]
        await asyncio.sleep(0.05)
        daemon.kill()
        async with asyncio.timeout(10):
            assert await asyncio.gather(*waiting) == [ErrorCode.DAEMON_LOST] * 3
        assert await refusal_of(client.ping()) is ErrorCode.DAEMON_LOST
        daemon.start()
        await client.connect()
        assert client.boot != boot
        assert await refusal_of(ticket.wait()) is ErrorCode.DAEMON_LOST
        assert (await (await client.load(keys, range(4), memory, deadline_s=0.01)).wait()).done

    play(scene)


@pytest.mark.timing
def test_deadlines_hold_against_a_daemon_that_stops_reading(play):
    """A small request and one too large for the socket both end in time, and the next call connects anew."""

    async def scene(client: AsyncClient) -> None:
        assert await refusal_of(client.reset(STOP_READING)) is ErrorCode.DEADLINE_EXCEEDED
        async with asyncio.timeout(0.5):
            assert await refusal_of(client.match([bytes(16)] * 100_000)) is ErrorCode.DEADLINE_EXCEEDED
        await client.ping()

    play(scene, timeout_s=0.2)


def test_a_farewell_is_heard_before_the_end(play):
    """What the daemon says before it closes is the error that callers see."""

    async def scene(client: AsyncClient) -> None:
        assert await refusal_of(client.reset(SAY_FAREWELL)) is ErrorCode.DRAINING
        await client.ping()

    play(scene)


def test_a_cancelled_task_leaves_the_connection_in_order(play):
    """Cancelling a task that waits for its reply disturbs no other."""

    async def scene(client: AsyncClient) -> None:
        slow = asyncio.ensure_future(client.match(client.keys(range(64)), hold_s=0.2))
        await asyncio.sleep(0.02)
        slow.cancel()
        for _ in range(20):
            await client.ping()
            await asyncio.sleep(0.02)

    play(scene)


def test_it_must_be_connected_before_it_knows_its_namespace(daemon):
    """Asking too early is a coded error, and so is any call after close."""

    async def main() -> None:
        client = AsyncClient(daemon.path, GEOMETRY)
        with pytest.raises(FlexKVError, match="connect"):
            client.keys([1])
        await client.close()
        assert await refusal_of(client.ping()) is ErrorCode.CANCELLED

    asyncio.run(main())


def test_a_refusal_keeps_its_code(daemon):
    """A client that is not let in hears so at every call, within the back-off too."""

    async def main() -> None:
        client = AsyncClient(daemon.path, GEOMETRY, token="wrong")
        for _ in range(5):
            assert await refusal_of(client.ping()) is ErrorCode.UNAUTHENTICATED
        await client.close()

    asyncio.run(main())


def test_who_waits_for_anothers_connecting_hears_of_the_loss(tmp_path):
    """While one task greets a daemon that never answers, another's call ends by its own time as DAEMON_LOST."""

    async def main() -> None:
        client = AsyncClient(tmp_path / "mute.sock", GEOMETRY, timeout_s=0.6)
        first = asyncio.ensure_future(refusal_of(client.ping()))
        await asyncio.sleep(0.05)
        client.timeout_s = 0.1
        assert await refusal_of(client.ping()) is ErrorCode.DAEMON_LOST
        assert await first is ErrorCode.DEADLINE_EXCEEDED
        await client.close()

    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "mute.sock"))
        mute.listen()
        asyncio.run(main())
