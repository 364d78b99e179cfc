"""A small SSD written many times over with the reuse of real coding sessions: bounded, gentle, and nearly ideal.

One worker replays the agentic trace until the SSD has taken `times` its capacity in new records. Meanwhile
the room of its segment files is sampled, every byte that comes back is compared, and two plain LRU caches
serve the same references: one of the whole capacity, and one of what the tier says live records may take.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from flexkv_py.traces import TraceRequest, open_trace
from flexkv_tiers.ssd.store import AMPLIFICATION_MAX
from flexkvd.cli.reference import LruReference
from flexkvd.cli.traffic import Target, replay
from tests.published import WEKA

from .fleet import DaemonProcess, Tables

BLOCK_BYTES = 16 << 10
RECORD_BYTES = BLOCK_BYTES + 4096
TOKENS_PER_BLOCK = 512
PAGES = 2048
"""A worker holds its longest request at once."""
DRAM_MIB = 4
IN_FLIGHT = "512KiB"
"""As small as the SSD: what is being written takes room already, and what is being dropped still does."""
POINTS_MAX = 2.0
RECORDS_FOR_POINTS = 5_000
"""With fewer records the segments that reclaim needs free cost more hits than `POINTS_MAX`."""
REQUESTS_PER_LOOK = 16
SAMPLE_S = 0.005
PERCENT_PER_LINE = 5


class RoomSampler(threading.Thread):
    """Measures, again and again, the room that the segment files of a directory take; keeps the most."""

    def __init__(self, directory: Path) -> None:
        super().__init__(name="room-sampler", daemon=True)
        self.most_bytes = self.samples = 0
        self._directory = directory
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.most_bytes = max(self.most_bytes, sum(map(_taken_bytes, self._directory.glob("segment*"))))
            self.samples += 1

    def stop(self) -> None:
        self._over.set()
        self.join()


def _taken_bytes(file: Path) -> int:
    try:
        return file.stat().st_blocks * 512
    except FileNotFoundError:  # a new segment has just got its name
        return 0


def endurance(
    folder: Path,
    *,
    records: int = RECORDS_FOR_POINTS,
    times: int = 20,
    amplification: int = 0,
    points_max: float = POINTS_MAX,
) -> dict[str, float]:
    """Write `times` the capacity of an SSD with room for `records`; hits at most `points_max` below the ideal.

    `amplification` 0 leaves the limit on rewriting at its default.
    """
    assert WEKA.exists(), "the published traces are not on this machine: name their folder in FLEXKV_TRACES"
    capacity_bytes, limit = records * RECORD_BYTES, amplification or AMPLIFICATION_MAX
    ideal = LruReference(records)
    with DaemonProcess(folder, _tables(folder, capacity_bytes, amplification)) as daemon:
        usable = LruReference(daemon.status()["tiers"]["ssd"]["usable_bytes"] // RECORD_BYTES)
        sampler = RoomSampler(folder / "ssd")
        sampler.start()
        requests = _until_written(daemon, times * capacity_bytes, (ideal, usable))
        ledger = replay(requests, Target(str(daemon.socket), BLOCK_BYTES, TOKENS_PER_BLOCK, pages=PAGES), 1)
        said = daemon.status()["tiers"]["ssd"]
        sampler.stop()
    hit_ratio = sum(ledger.hits.values()) / ledger.blocks
    points, points_of_usable = 100 * (ideal.ratio - hit_ratio), 100 * (usable.ratio - hit_ratio)
    assert not ledger.wrong_count, f"wrong bytes: {ledger.wrong}"
    assert said["written_bytes"] >= times * capacity_bytes, "the trace ended before enough was written: choose less"
    assert sampler.most_bytes <= capacity_bytes, f"{sampler.most_bytes} bytes taken of {capacity_bytes}"
    assert said["write_amplification"] <= limit, f"write amplification {said['write_amplification']} of {limit}"
    figures = {
        "blocks asked for": ledger.blocks,
        "blocks compared, all right": sum(ledger.hits.values()),
        "written, in capacities": said["written_bytes"] / capacity_bytes,
        "most room taken, of capacity": sampler.most_bytes / capacity_bytes,
        "samples of the room": sampler.samples,
        "usable, of capacity": said["usable_bytes"] / capacity_bytes,
        "write amplification": said["write_amplification"],
        "its limit": limit,
        "records let go": said["records_let_go"],
        "hit ratio, %": 100 * hit_ratio,
        "hit ratio of the ideal, %": 100 * ideal.ratio,
        "points below the ideal": points,
        "points below an ideal of what is usable": points_of_usable,
    }
    assert points_of_usable <= POINTS_MAX, too_few(points_of_usable, POINTS_MAX, "usable room", records, figures)
    assert points <= points_max, too_few(points, points_max, "capacity", records, figures)
    return figures


def too_few(points: float, points_max: float, of: str, records: int, figures: dict[str, float]) -> str:
    """The sentence with which too few hits end a run."""
    small = (
        f"; {records} records are few: below {RECORDS_FOR_POINTS} a point costs more room than reclaim leaves over, so "
        "a miss of this limit says nothing of the store"
    )
    return (
        f"hits are {points:.2f} points below those of an LRU cache of the {of}, at most {points_max} are allowed"
        f"{small if records < RECORDS_FOR_POINTS else ''}: {figures}"
    )


def _tables(folder: Path, capacity_bytes: int, amplification: int) -> Tables:
    """The daemon's configuration: a small SSD behind hardly any DRAM."""
    ssd = {"directory": str(folder / "ssd"), "bytes": capacity_bytes, "free_space_reserve_bytes": "1MiB"}
    limit = {"write_amplification_max": amplification} if amplification else {}
    return {
        "dram": {"bytes": f"{DRAM_MIB}MiB", "segment_bytes": "1MiB"},
        "ssd": ssd | {"bytes_in_flight_max": IN_FLIGHT} | limit,
        "limits": {"demotion_bytes_in_flight_max": IN_FLIGHT},
    }


def _until_written(
    daemon: DaemonProcess, written_bytes: int, references: tuple[LruReference, ...]
) -> Iterator[TraceRequest]:
    """Requests of the trace, each also served by the references, until the SSD has taken so many bytes."""
    told = 0
    for number, request in enumerate(open_trace(WEKA, TOKENS_PER_BLOCK)):
        if number % REQUESTS_PER_LOOK == 0:
            written = daemon.status()["tiers"]["ssd"]["written_bytes"] / written_bytes
            if int(100 * written) >= told + PERCENT_PER_LINE:
                told = int(100 * written)
                sys.stderr.write(f"{told} % written after {number} requests\n")
            if written >= 1:
                return
        for reference in references:
            reference.serve(request.full_ids)
        yield request
