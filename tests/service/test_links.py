"""Links: priority first, then arrival, never more at a time than configured."""

import asyncio

from flexkv_py.core.messages import Priority
from flexkvd.links import Link


def test_waiting_moves_go_by_priority_then_by_arrival() -> None:
    """With one move at a time, a load that arrives last overtakes every demotion that has not begun."""

    async def run() -> list[str]:
        link, order = Link("test", 1, asyncio.get_running_loop()), list[str]()

        async def move(name: str) -> None:
            order.append(name)
            await asyncio.sleep(0)

        for name, priority in (
            ("first", Priority.DEMOTION),
            ("second", Priority.DEMOTION),
            ("third", Priority.DEMOTION),
            ("prefetch", Priority.PREFETCH),
            ("load", Priority.LOAD),
        ):
            link.submit(priority, lambda name=name: move(name))
        while link.tasks:
            await asyncio.wait(link.tasks)
        return order

    assert asyncio.run(run()) == ["first", "load", "prefetch", "second", "third"]


def test_no_more_run_at_a_time_than_configured() -> None:
    """Ten moves on a link of three never make four."""

    async def run() -> tuple[int, int]:
        link, running, most, ended = Link("test", 3, asyncio.get_running_loop()), 0, 0, 0

        async def move() -> None:
            nonlocal running, most, ended
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            ended += 1

        for _ in range(10):
            link.submit(Priority.SAVE, move)
        while link.tasks:
            await asyncio.wait(link.tasks)
        return most, ended

    assert asyncio.run(run()) == (3, 10)
