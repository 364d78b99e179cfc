"""LRU over chunks of all running requests, each with an order of its own."""

from __future__ import annotations

from flexkv_py.rows.lru import LeastRecentRows
from flexkv_py.rows.messages import HeatEntry
from flexkv_py.rows.policy import Place, RequestId

ONE, TWO = RequestId(1), RequestId(2)


def test_what_was_used_longest_ago_leaves_first_whoever_uses_it():
    """Grants and selections of two requests, in turn; within a report the most selected counts as used last."""
    policy = LeastRecentRows()
    for block in (0, 1):
        for request in (ONE, TWO):
            policy.granted(Place(request, block, 0), 0)
    policy.reported(ONE, [HeatEntry(ONE, 0, 0, 9), HeatEntry(ONE, 1, 0, 2), HeatEntry(ONE, 7, 0, 1)], 0)
    assert list(policy.coldest(0)) == [Place(TWO, 0, 0), Place(TWO, 1, 0), Place(ONE, 1, 0), Place(ONE, 0, 0)]


def test_a_detached_request_is_forgotten():
    """Nothing of it is offered, whatever is told of it afterwards; attached again it begins anew."""
    policy = LeastRecentRows()
    policy.granted(Place(ONE, 0, 0), 0)
    policy.granted(Place(TWO, 0, 0), 0)
    policy.detached(ONE)
    policy.reported(ONE, [HeatEntry(ONE, 0, 0, 9)], 0)
    policy.revoked(Place(ONE, 0, 0))
    assert list(policy.coldest(0)) == [Place(TWO, 0, 0)]
    policy.granted(Place(ONE, 3, 0), 0)
    assert list(policy.coldest(0)) == [Place(TWO, 0, 0), Place(ONE, 3, 0)]
