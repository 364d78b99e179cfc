"""A small SSD written many times over with the reuse of real coding sessions: bounded, gentle, and nearly ideal.

One worker replays the agentic trace until the SSD has taken `times` its capacity in new records. Meanwhile
the room of its segment files is sampled, every byte that comes back is compared, and a plain LRU cache of
the same size serves the same references.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from flexkv_py.traces import TraceRequest, open_trace
from flexkvd.cli.reference import LruReference
from flexkvd.cli.traffic import Target, replay
from tests.published import WEKA

from .fleet import DaemonProcess

BLOCK_BYTES = 16 << 10
RECORD_BYTES = BLOCK_BYTES + 4096
TOKENS_PER_BLOCK = 512
DRAM_MIB = 4
IN_FLIGHT = "1MiB"
"""As small as the SSD: what is being written takes room already, and what is being dropped still does."""
REQUESTS_PER_LOOK = 16
SAMPLE_S = 0.005


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
    folder: Path, *, records: int = 5_000, times: int = 20, amplification: int = 8, points_max: float = 2.0
) -> dict[str, float]:
    """Write `times` the capacity of an SSD with room for `records`; hits at most `points_max` below the ideal."""
    assert WEKA.exists(), "the published traces are not on this machine: name their folder in FLEXKV_TRACES"
    capacity_bytes = records * RECORD_BYTES
    ssd = {"directory": str(folder / "ssd"), "bytes": capacity_bytes, "free_space_reserve_bytes": "1MiB"}
    tables = {
        "dram": {"bytes": f"{DRAM_MIB}MiB", "segment_bytes": "1MiB"},
        "ssd": ssd | {"bytes_in_flight_max": IN_FLIGHT, "write_amplification_max": amplification},
        "limits": {"demotion_bytes_in_flight_max": IN_FLIGHT},
    }
    ideal = LruReference(records)
    with DaemonProcess(folder, tables) as daemon:
        sampler = RoomSampler(folder / "ssd")
        sampler.start()
        requests = _until_written(daemon, times * capacity_bytes, ideal)
        ledger = replay(requests, Target(str(daemon.socket), BLOCK_BYTES, TOKENS_PER_BLOCK), client_count=1)
        said = daemon.status()["tiers"]["ssd"]
        sampler.stop()
    hit_ratio = sum(ledger.hits.values()) / ledger.blocks
    points = 100 * (ideal.ratio - hit_ratio)
    assert not ledger.wrong_count, f"wrong bytes: {ledger.wrong}"
    assert said["written_bytes"] >= times * capacity_bytes, "the trace ended before enough was written: choose less"
    assert sampler.most_bytes <= capacity_bytes, f"{sampler.most_bytes} bytes taken of {capacity_bytes}"
    assert said["write_amplification"] <= amplification, f"write amplification {said['write_amplification']}"
    assert points <= points_max, f"{100 * hit_ratio:.2f} % of blocks were hits, {100 * ideal.ratio:.2f} % ideally"
    return {
        "blocks asked for": ledger.blocks,
        "blocks compared, all right": sum(ledger.hits.values()),
        "written, in capacities": said["written_bytes"] / capacity_bytes,
        "most room taken, of capacity": sampler.most_bytes / capacity_bytes,
        "samples of the room": sampler.samples,
        "usable, of capacity": said["usable_bytes"] / capacity_bytes,
        "write amplification": said["write_amplification"],
        "records let go": said["records_let_go"],
        "hit ratio, %": 100 * hit_ratio,
        "hit ratio of the ideal, %": 100 * ideal.ratio,
        "points below the ideal": points,
    }


def _until_written(daemon: DaemonProcess, written_bytes: int, ideal: LruReference) -> Iterator[TraceRequest]:
    """Requests of the trace, each also served by the ideal, until the SSD has taken so many bytes."""
    for number, request in enumerate(open_trace(WEKA, TOKENS_PER_BLOCK)):
        if number % REQUESTS_PER_LOOK == 0 and daemon.status()["tiers"]["ssd"]["written_bytes"] >= written_bytes:
            return
        ideal.serve(request.full_ids)
        yield request
