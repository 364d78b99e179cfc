"""The parts that know nothing of a planner: ranking, lines, retention, names."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from flexkv_py.core.blocks import Block
from flexkv_py.keys import ROOT, NamespaceDigest, namespace_digest
from flexkv_py.tenants.line import Line
from flexkv_py.tenants.owner import Marker, Quota
from flexkv_py.tenants.ranking import ENTRIES_PER_SHELF_MAX, Ranking
from flexkv_py.tenants.registry import Registry
from flexkv_py.tenants.retention import SECOND_NS, Retention
from flexkv_py.tenants.shelf import Tenant
from tests.core.conftest import chain, make_index


@dataclass(eq=False)
class Room:
    """A shelf as far as a ranking knows one."""

    weight: float
    used: int = 0
    count: int = 0
    ranked: bool = False
    ranked_at: float = 0.0
    watched: bool = False
    log: list[int] = field(default_factory=list)

    @property
    def fullness(self) -> float:
        return self.used / self.weight


CHANGES = st.lists(st.tuples(st.integers(0, 4), st.integers(-50, 100), st.booleans()), max_size=120)


@settings(max_examples=150, deadline=None)
@given(CHANGES)
def test_the_fullest_is_found_whatever_changed(changes):
    """Against a search over all, after any order of growth, shrinkage, and shelves that have nothing to give."""
    ranking: Ranking[Room] = Ranking()
    rooms = [Room(weight) for weight in (0.5, 1.0, 1.0, 2.0, 3.0)]
    for room in rooms:
        ranking.join(room)
    for at, more, gives in changes:
        room = rooms[at]
        room.used = max(0, room.used + more)
        room.count = int(gives)
        if gives and not room.ranked:
            ranking.enter(room)
        ranking.grown(room)
        best = max((each.fullness for each in rooms if each.count), default=None)
        found = ranking.fullest()
        assert (found.fullness if found else None) == best
        assert len(ranking._heap) <= ENTRIES_PER_SHELF_MAX * (len(rooms) + 1)


def test_tenants_take_turns_and_keep_their_own_order():
    """Whoever was served goes behind the others; what is put first of one tenant stays behind other tenants."""
    line: Line[int] = Line()
    ann, bob = Tenant("ann"), Tenant("bob")
    for item in (1, 2, 3):
        line.append(ann, item)
    line.append(bob, 4)
    line.put_first(ann, 0)
    assert line.turns() == [ann, bob]
    line.remove(ann, 0)
    line.end_turn(ann)
    assert line.turns() == [bob, ann]
    line.remove(bob, 4)
    assert (list(line), len(line), bob in line) == ([1, 2, 3], 3, False)
    assert line.discard(lambda item: item != 2) == [1, 3]
    assert (list(line), len(line)) == ([2], 1)


def test_a_block_is_due_at_the_end_of_the_second_its_time_ends_in():
    """And not while somebody asked for longer; what is gone is not due, and leaves nothing."""
    retention, index = Retention(), make_index()
    first, second, third = (Block(key, ROOT, index) for key in chain(3))
    retention.keep(first, SECOND_NS // 2)
    retention.keep(second, SECOND_NS // 2)
    retention.keep(third, SECOND_NS // 2)
    retention.keep_longer(second, 5 * SECOND_NS)
    retention.forget(third)
    assert retention.next_ns() == SECOND_NS
    assert retention.take(SECOND_NS - 1) is None
    assert retention.take(SECOND_NS) is first
    assert retention.take(SECOND_NS) is None
    assert retention.until_ns(second) == 5 * SECOND_NS
    retention.keep_longer(second, 0)
    assert (retention.next_ns(), retention.seconds) == (None, {})


NAMES = st.text(max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=6), NAMES, st.integers(0, 3)), min_size=2, max_size=6))
def test_no_two_sources_of_a_namespace_collide(triples):
    """Whatever text a tenant is called by, and however geometry and epoch read: other triples, other namespaces."""
    assert len({namespace_digest(*triple) for triple in triples}) == len(set(triples))


@settings(max_examples=100, deadline=None)
@given(st.lists(NAMES, max_size=8), st.integers(1, 4))
def test_no_name_is_taken_for_what_has_none(names, tenants_max):
    """A tenant called like a marker is a tenant; beyond `tenants_max` all others count as one, known ones stay."""
    made: list[Tenant] = []
    registry = Registry(tenants_max, {"unknown": Quota(1)}, made.append)
    assert registry.owner_of(NamespaceDigest(b"?" * 32)).name is Marker.UNKNOWN
    names = [*names, "unknown", "others", ""]
    for name in names:
        registry.learn(namespace_digest(b"", name, 0), name)
    owners = {name: registry.owner_of(namespace_digest(b"", name, 0)) for name in names}
    known = list(dict.fromkeys(names))[:tenants_max]
    for name, owner in owners.items():
        assert owner.name == (name if name in known else Marker.OTHERS)
        assert owner.quota == Quota(1 if owner.name == "unknown" else 0)
    assert len(made) == len({owner.name for owner in made})
