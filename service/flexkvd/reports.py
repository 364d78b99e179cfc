"""Reports of the row path: packed numbers of a worker, checked, as the event the planner hears.

Owns what is believed of a report: groups and blocks that exist, requests that are attached. What is said of a
request that was detached meanwhile is dropped: its engine could not know. `row_path` calls it.
"""

from __future__ import annotations

import struct
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
    known = _Attached(attached)
    entries = known.only(_numbers("entries", report.entries, 4))
    absents = known.only(_numbers("absents", report.absents, 3))
    replayed = known.only(_numbers("replayed", report.replayed, 1))
    misses = known.only(_numbers("misses", report.misses, 4))
    _check_below("a group", entries[:, 1], len(geometry.groups))
    _check_below("a group", misses[:, 1], len(geometry.groups))
    _check_below("a chunk", absents[:, 2], geometry.chunk_count)
    known.check_blocks(entries[:, [0, 2]])
    known.check_blocks(absents[:, [0, 1]])
    heat = entries[:, [0, 2, 1, 3]]
    heat[:, 2] = _chunk_of_group(geometry)[heat[:, 2]]
    return HeatReported(
        session,
        list(map(HeatEntry._make, struct.iter_unpack("<4I", heat.tobytes()))),  # a third cheaper than lists of lists
        list(map(AbsentEntry._make, absents.tolist())),
        replayed[:, 0].tolist(),
        list(map(MissEntry._make, misses.tolist())),
        now_ns,
    )


class _Attached:
    """Requests of a session and how many blocks they have, for looking up many at a time."""

    def __init__(self, attached: Mapping[int, int]) -> None:
        self._requests = np.array(sorted(attached), dtype=np.uint32)
        self._counts = np.array([attached[request] for request in self._requests.tolist()], dtype=np.uint32)

    def only(self, rows: Numbers) -> Numbers:
        """Rows whose first column is attached."""
        inside = np.isin(rows[:, 0], self._requests)
        return rows if inside.all() else rows[inside]

    def check_blocks(self, places: Numbers) -> None:
        """`places` are (request, block), of attached requests. Raises BAD_ARGUMENT for a block there is not."""
        counts = self._counts[np.searchsorted(self._requests, places[:, 0])]
        beyond = places[:, 1] >= counts
        if beyond.any():
            request, block = places[beyond][0].tolist()
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"the report names block {block} of request {request}, which has {counts[beyond][0]}: attach it first",
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


def _check_below(what: str, numbers: Numbers, count: int) -> None:
    if numbers.size and int(numbers.max()) >= count:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"the report names {what} {int(numbers.max())} where there are {count}: number them from 0 on, "
            "as the geometry of hello lists them",
        )


@lru_cache(GROUPS_CACHED_MAX)
def _chunk_of_group(geometry: Geometry) -> Numbers:
    """Which chunk holds each layer group."""
    return np.array([chunk for chunk, groups in enumerate(geometry.chunk_groups) for _ in groups], dtype=np.uint32)
