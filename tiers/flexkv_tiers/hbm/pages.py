"""HBM pages: which are free, which somebody holds, and which a running copy still uses.

A page is room for all rows of one block, every layer and plane, in the worker's own paged KV; it holds a block, or is
part of a hot buffer. Owns the count and nothing else: `pool` decides who gets a page, `steps` knows where its rows lie.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable


class PagePool:
    """Pages `0 … count - 1`, each free, held, or left by its holder while copies still read it."""

    def __init__(self, count: int) -> None:
        assert count >= 0
        self.count = count
        self._free = list(reversed(range(count)))
        self._copies: dict[int, int] = {}  # page → running copies that read it, always > 0
        self._left: set[int] = set()  # given back while copies were running; free when the last one ends

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def left_count(self) -> int:
        """Pages nobody holds that are not free yet, because a copy still reads them."""
        return len(self._left)

    def is_copied(self, page: int) -> bool:
        """True while a copy reads or writes it: nobody else may write to it."""
        return page in self._copies

    def take(self) -> int:
        return self._free.pop()

    def give_back(self, page: int) -> None:
        """Free the page; while a copy reads it, its end frees it instead."""
        assert page not in self._left
        if page in self._copies:
            self._left.add(page)
        else:
            self._free.append(page)

    def copy_started(self, page: int) -> None:
        assert page not in self._left
        self._copies[page] = self._copies.get(page, 0) + 1

    def copy_ended(self, page: int) -> None:
        self._copies[page] -= 1
        if not self._copies[page]:
            del self._copies[page]
            if page in self._left:
                self._left.remove(page)
                self._free.append(page)

    def check(self, held: Iterable[int], copies: Iterable[int]) -> None:
        """Recount: every page is free, held or left, exactly once; `copies` lists the page of each running copy."""
        pages = [*self._free, *held, *self._left]
        assert sorted(pages) == list(range(self.count)), "a page is lost or has two holders"
        counts: dict[int, int] = {}
        for page in copies:
            counts[page] = counts.get(page, 0) + 1
        assert counts == self._copies, "running copies are counted wrongly"
        assert self._left <= self._copies.keys(), "a page waits for a copy that is not running"
        assert not set(self._free) & self._copies.keys(), "a free page is still read by a copy"
