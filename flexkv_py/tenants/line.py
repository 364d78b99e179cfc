"""Those who wait for the same thing, tenant by tenant.

Each tenant's wait in order, and tenants take turns: one that has many waiting holds up only its own. Made and served
by the planner's flows, which know what is waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from flexkv_py.tenants.owner import Owner

ItemT = TypeVar("ItemT")


class Line(Generic[ItemT]):
    """See the module's docstring. Every operation is O(1); `turns` is O(its answer)."""

    def __init__(self) -> None:
        self.queues: dict[Owner[Any], deque[ItemT]] = {}  # none of them empty; whose turn it is comes first
        self._count = 0
        self.short = False  # somebody waits for what the tier lacks, and not only for his own quota

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ItemT]:
        return (item for queue in self.queues.values() for item in queue)

    def __contains__(self, owner: object) -> bool:
        """Whether a tenant has anything waiting."""
        return owner in self.queues

    def turns(self) -> list[Owner[Any]]:
        """Whose turn it is, and who comes after."""
        return list(self.queues)

    def append(self, owner: Owner[Any], item: ItemT) -> None:
        self.queues.setdefault(owner, deque()).append(item)
        self._count += 1

    def put_first(self, owner: Owner[Any], item: ItemT) -> None:
        """Before all of its tenant that wait already."""
        self.queues.setdefault(owner, deque()).appendleft(item)
        self._count += 1

    def first(self, owner: Owner[Any]) -> ItemT | None:
        """What is next of a tenant."""
        queue = self.queues.get(owner)
        return queue[0] if queue else None

    def first_few(self, owner: Owner[Any], items_max: int) -> list[ItemT]:
        """What is next of a tenant, a bounded number."""
        return list(islice(self.queues.get(owner, ()), items_max))

    def remove(self, owner: Owner[Any], item: ItemT) -> None:
        """It waits no more. O(1) for the first of a tenant, else O(those before it)."""
        queue = self.queues[owner]
        if queue[0] is item:
            queue.popleft()
        else:
            queue.remove(item)
        self._count -= 1
        if not queue:
            del self.queues[owner]

    def discard(self, unwanted: Callable[[ItemT], bool]) -> list[ItemT]:
        """Those that are not wanted wait no more. O(all)."""
        gone = []
        for owner, queue in list(self.queues.items()):
            gone += [item for item in queue if unwanted(item)]
            kept = deque(item for item in queue if not unwanted(item))
            if kept:
                self.queues[owner] = kept
            else:
                del self.queues[owner]
        self._count -= len(gone)
        return gone

    def end_turn(self, owner: Owner[Any]) -> None:
        """All others come before this tenant now."""
        queue = self.queues.pop(owner, None)
        if queue is not None:
            self.queues[owner] = queue
