"""Reports of the row path: packed numbers of a worker, checked, as the event the planner hears.

Owns what is believed of a report: groups and blocks that exist, requests that are attached. What is said of a
request that was detached meanwhile is dropped: its engine could not know. `row_path` calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from flexkv_py.core.messages import AbsentEntry, HeatEntry, HeatReported, MissEntry
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry
from flexkv_py.wire.messages import REPORT_PAGES_MAX, Report

Numbers = npt.NDArray[np.uint32]

GROUPS_CACHED_MAX = 64
"""Geometries whose groups' chunks are remembered."""


def heat_of(session: int, geometry: Geometry, attached: Mapping[int, int], report: Report, now_ns: int) -> HeatReported:
    """The event of one report. `attached` has the number of blocks of each request. Raises FlexKVError."""
    entries = _of_attached(_numbers("entries", report.entries, 4), attached)
    absents = _of_attached(_numbers("absents", report.absents, 3), attached)
    replayed = _of_attached(_numbers("replayed", report.replayed, 1), attached)
    misses = _of_attached(_numbers("misses", report.misses, 4), attached)
    _check_below("a group", entries[:, 1], len(geometry.groups))
    _check_below("a group", misses[:, 1], len(geometry.groups))
    _check_below("a chunk", absents[:, 2], geometry.chunk_count)
    _check_blocks(entries[:, [0, 2]], attached)
    _check_blocks(absents[:, [0, 1]], attached)
    chunks = _chunk_of_group(geometry)[entries[:, 1]]
    heat = zip(entries[:, 0].tolist(), entries[:, 2].tolist(), chunks.tolist(), entries[:, 3].tolist(), strict=True)
    return HeatReported(
        session,
        list(map(HeatEntry._make, heat)),
        list(map(AbsentEntry._make, absents.tolist())),
        replayed[:, 0].tolist(),
        list(map(MissEntry._make, misses.tolist())),
        now_ns,
    )


def _numbers(name: str, packed: bytes, width: int) -> Numbers:
    entry_bytes = 4 * width
    if len(packed) % entry_bytes:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"{name} has {len(packed)} bytes: send whole entries of {width} u32, {entry_bytes} bytes each",
        )
    if len(packed) > REPORT_PAGES_MAX * entry_bytes:
        raise FlexKVError(
            ErrorCode.LIMIT_EXCEEDED,
            f"{name} has {len(packed) // entry_bytes} entries: report at most {REPORT_PAGES_MAX}, the largest first",
        )
    return np.frombuffer(packed, dtype="<u4").reshape(-1, width)


def _of_attached(rows: Numbers, attached: Mapping[int, int]) -> Numbers:
    """Those of requests that are attached."""
    known = np.fromiter(attached, dtype=np.uint32, count=len(attached))
    inside = np.isin(rows[:, 0], known)
    return rows if inside.all() else rows[inside]


def _check_below(what: str, numbers: Numbers, count: int) -> None:
    if numbers.size and int(numbers.max()) >= count:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"the report names {what} {int(numbers.max())} where there are {count}: number them from 0 on, "
            "as the geometry of hello lists them",
        )


def _check_blocks(places: Numbers, attached: Mapping[int, int]) -> None:
    """`places` are (request, block), of attached requests."""
    counts = np.array([attached[request] for request in places[:, 0].tolist()], dtype=np.uint32)
    beyond = places[:, 1] >= counts
    if beyond.any():
        request, block = places[beyond][0].tolist()
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"the report names block {block} of request {request}, which has {attached[request]}: attach it first",
        )


@lru_cache(GROUPS_CACHED_MAX)
def _chunk_of_group(geometry: Geometry) -> Numbers:
    """Which chunk holds each layer group."""
    return np.array([chunk for chunk, groups in enumerate(geometry.chunk_groups) for _ in groups], dtype=np.uint32)
