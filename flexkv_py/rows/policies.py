"""Row policies by name. A new one is a file plus a line here."""

from __future__ import annotations

from collections.abc import Callable

from flexkv_py.rows.lfu import LeastFrequentRows
from flexkv_py.rows.lru import LeastRecentRows
from flexkv_py.rows.policy import RowPolicy
from flexkv_py.rows.sparse import SparseRows

ROW_POLICIES: dict[str, Callable[[], RowPolicy]] = {
    "lru": LeastRecentRows,
    "lfu": LeastFrequentRows,
    "sparse": SparseRows,
}
