"""Which codec is used for what: sections of a geometry, the automatic choice, and what configuration says."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexkv_py.geometry import Geometry, Plane
from flexkv_py.keys import NamespaceDigest
from flexkv_tiers.codec.auto import PAYS_MIN, TRIAL_EVERY, TRIAL_EVERY_IDLE, TRIALS_FIRST, AutoChoice
from flexkv_tiers.codec.choice import NAMESPACES_MAX, CodecChooser
from flexkv_tiers.codec.plan import CodecNumber, Measure, Order, section_plan
from flexkv_tiers.codec.sections import encode_chunk

from .test_codec_chunks import bfloat16

LZ4, ZSTD, PLANES, NONE = CodecNumber.LZ4, CodecNumber.ZSTD, CodecNumber.PLANES, CodecNumber.NONE
NAMESPACE = NamespaceDigest(b"n" * 32)
GEOMETRY = Geometry((Plane("kv", tuple(range(8)), 1024), Plane("index", tuple(range(2, 8)), 132)), tokens_per_block=64)
MIB = 1 << 20


def measure(codec: CodecNumber, saved: float, encode_ns: int = 1000, decode_ns: int = 1000) -> Measure:
    return Measure(0, codec, MIB, round(MIB * (1 - saved)), encode_ns, decode_ns)


def settled(**saved: float) -> AutoChoice:
    """A choice that has seen its first trials; costs rise in the order given."""
    choice = AutoChoice((LZ4, ZSTD, PLANES))
    for _ in range(TRIALS_FIRST):
        choice.next_codecs()
        for cost, (name, share) in enumerate(saved.items(), 1):
            choice.note(measure(CodecNumber[name.upper()], share, 1000 * cost))
    return choice


@given(st.integers(1, 8), st.integers(1, 3000), st.integers(1, 700), st.sampled_from(["bfloat16", "fp8", "strange"]))
def test_sections_cover_every_chunk_of_a_geometry(layers: int, kv: int, index: int, dtype: str) -> None:
    """One section per plane in a chunk, in layout order, the padding with the last; none is left out."""
    planes = (Plane("kv", tuple(range(layers)), kv), Plane("index", (layers - 1,), index))
    geometry = Geometry(planes, tokens_per_block=64, dtype=dtype, chunk_bytes_min=4096)
    plan = section_plan(geometry)
    assert [sum(section.raw_bytes for section in chunk) for chunk in plan] == list(geometry.chunk_bytes)
    assert [[section.plane for section in chunk] for chunk in plan[:-1]] == [["kv"]] * (len(plan) - 1)
    assert [section.plane for section in plan[-1]] == ["kv", "index"]
    assert {section.element_bytes for chunk in plan for section in chunk} == {{"bfloat16": 2, "fp8": 1}.get(dtype, 0)}


def test_every_new_plane_starts_with_trials_and_then_has_few() -> None:
    """The first chunks try all candidates, then one in many does; the others use the one that was chosen."""
    choice = settled(lz4=0.0, zstd=0.2, planes=0.3)
    lengths = [len(choice.next_codecs()) for _ in range(3 * TRIAL_EVERY)]
    assert choice.trials == TRIALS_FIRST + lengths.count(3) == TRIALS_FIRST + 2
    assert choice.next_codecs() == (PLANES,)


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ({"lz4": 0.0, "zstd": 0.0, "planes": 0.0}, NONE),
        ({"lz4": 0.029, "zstd": 0.029, "planes": 0.029}, NONE),
        ({"lz4": 0.031, "zstd": 0.05, "planes": 0.06}, LZ4),
        ({"lz4": 0.0, "zstd": 0.22, "planes": 0.31}, PLANES),
        ({"lz4": 0.0, "zstd": 0.17, "planes": 0.18}, ZSTD),
        ({"planes": 0.31, "lz4": 0.0, "zstd": 0.22}, PLANES),
        ({"lz4": 0.95, "zstd": 0.96, "planes": 0.5}, LZ4),
    ],
)
def test_a_codec_must_save_enough_more_than_a_cheaper_one(saved: dict[str, float], expected: CodecNumber) -> None:
    """Less than 3 % is not worth any CPU, over nothing as over a codec that costs less."""
    choice = settled(**saved)
    assert choice.decision is expected, choice.status()
    assert choice.why


def test_what_stops_paying_is_dropped_at_once_and_tried_again_rarely() -> None:
    """Blocks turn incompressible: the codec is given up between trials; when they turn back, a trial finds out."""
    choice = settled(lz4=0.0, zstd=0.2, planes=0.3)
    for _ in range(300):
        choice.next_codecs()
        choice.note(measure(PLANES, 0.0))
        choice.note(measure(ZSTD, 0.0))
    assert choice.decision is NONE
    trials, chunks = choice.trials, 0
    while choice.trials == trials:
        assert choice.next_codecs() == (NONE,) or choice.trials > trials
        chunks += 1
        assert chunks <= TRIAL_EVERY_IDLE + TRIAL_EVERY
    for _ in range(TRIALS_FIRST):
        choice.note(measure(PLANES, 0.3))
    assert choice.decision is PLANES


@given(st.lists(st.tuples(st.sampled_from([LZ4, ZSTD, PLANES]), st.floats(0, 1), st.integers(0, 10**9)), max_size=60))
def test_a_decision_always_pays(measures: list[tuple[CodecNumber, float, int]]) -> None:
    """Whatever was measured, what is used saves at least 3 % by the figures shown beside it."""
    choice = AutoChoice((LZ4, ZSTD, PLANES))
    for codec, saved, cost in measures:
        choice.note(measure(codec, saved, cost))
        status = choice.status()
        if choice.decision is not NONE:
            shown = status["codecs"][choice.decision.name.lower()]["saved_percent"]  # type: ignore[index]
            assert shown >= 100 * PAYS_MIN - 0.1


@pytest.mark.parametrize(
    ("raw", "expected"),
    [(bfloat16(MIB), {PLANES}), (bytes(MIB), {LZ4, ZSTD}), (random.Random(1).randbytes(MIB), {NONE})],
    ids=["bf16", "zeros", "random"],
)
def test_real_blocks_are_stored_by_what_suits_them(raw: bytes, expected: set[CodecNumber]) -> None:
    """Measured for real: planes for bf16, whichever is cheaper here for runs of zeros, nothing for noise."""
    choice, room = AutoChoice((LZ4, ZSTD, PLANES)), memoryview(bytearray(MIB))
    for _ in range(TRIALS_FIRST):
        _, measures = encode_chunk(memoryview(raw), bytes(16), [Order(MIB, choice.next_codecs())], room)
        for each in measures:
            choice.note(each)
    [codec] = choice.next_codecs()
    assert codec in expected, choice.status()


def test_planes_are_set_one_by_one_and_the_rest_by_default() -> None:
    """A plane named in the configuration has its codec, all others the tier's."""
    chooser = CodecChooser("planes", {"index": "zstd"})
    chooser.introduce(NAMESPACE, section_plan(GEOMETRY))
    orders = chooser.orders(NAMESPACE, GEOMETRY.chunk_bytes)
    plan = section_plan(GEOMETRY)
    expected = [[ZSTD if section.plane == "index" else PLANES for section in chunk] for chunk in plan]
    assert [[order.codecs[0] for order in chunk] for chunk in orders] == expected


def test_a_tier_without_codecs_orders_nothing() -> None:
    """Codec none costs nothing: no orders, so no chunk is looked at."""
    chooser = CodecChooser("none")
    chooser.introduce(NAMESPACE, section_plan(GEOMETRY))
    assert chooser.orders(NAMESPACE, GEOMETRY.chunk_bytes) == []
    assert not chooser.compresses


def test_automatic_choices_are_by_namespace_and_plane_and_shown() -> None:
    """Measures of one plane decide for it alone; status says what was decided and why."""
    chooser = CodecChooser("auto")
    chooser.introduce(NAMESPACE, section_plan(GEOMETRY))
    last = GEOMETRY.chunk_count - 1
    for _ in range(2 * TRIALS_FIRST):
        orders = chooser.orders(NAMESPACE, GEOMETRY.chunk_bytes)
        if not orders:
            break
        kv = [measure(PLANES, 0.3), measure(ZSTD, 0.2, 5000), measure(LZ4, 0.0)]
        index = [Measure(1, codec, MIB, MIB, 1000, 1000) for codec in (LZ4, ZSTD, PLANES)]
        chooser.note(NAMESPACE, [kv + (index if chunk == last else []) for chunk in range(len(orders))])
    planes = chooser.status()["auto"][NAMESPACE.hex()]  # type: ignore[index]
    assert (planes["kv"]["decision"], planes["index"]["decision"]) == ("planes", "none")


def test_chunks_of_a_namespace_nobody_introduced_are_one_section_each() -> None:
    """A daemon that moves blocks of a client that has not come back yet compresses them all the same."""
    orders = CodecChooser("zstd").orders(NAMESPACE, [8192, 4096])
    assert orders == [[Order(8192, (ZSTD,))], [Order(4096, (ZSTD,))]]


def test_namespaces_that_are_remembered_are_bounded() -> None:
    """However many geometries come by, figures are kept of the latest only."""
    chooser = CodecChooser("auto")
    for number in range(NAMESPACES_MAX + 10):
        chooser.orders(NamespaceDigest(number.to_bytes(32)), [8192])
    shown = chooser.status()["auto"]
    assert isinstance(shown, dict)
    assert len(shown) == NAMESPACES_MAX
    assert (NAMESPACES_MAX + 9).to_bytes(32).hex() in shown
