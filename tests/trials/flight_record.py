"""A faulty life of a daemon, recorded: S3 fails, records are damaged, workers killed. Its dump replays to its end.

Replayed by the command itself, in processes with other hash seeds than the daemon's.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from flexkv_py.client import Client
from flexkv_py.core.messages import TransfersFinished
from flexkvd.cli.s3server import S3Server
from flexkvd.recorder.file import Recording, unpack
from flexkvd.recorder.replay import planner_of, read_records
from flexkvd.recorder.ring import Recorder
from tests.s3proxy import FaultProxy, Faults

from .blocks import GEOMETRY, Pages, chain
from .fleet import ENVIRONMENT, DaemonProcess, until
from .kill_worker import BLOCKS_PER_WORKER, start_worker
from .s3_faults import FAULTS, OUTAGE
from .stored import Segments

CHAIN_BLOCKS = 8
CHAINS_PER_ROUND = 20
DAMAGED_PER_ROUND = 16
WAIT_S = 30
SLOW = ("5 s latency", "silence")
"""Faults of S3 that would make this a trial of patience."""
RUN = "import sys; from flexkvd.cli import main; sys.exit(main(sys.argv[1:]))"
HASH_SEEDS = ("1", "2")


def flight_record(folder: Path, *, rounds: int = 2, seed: int = 1) -> dict[str, float]:
    """One daemon through `rounds` of everything; what of it is in the recording, and how large that is."""
    chance = random.Random(seed)
    dumps = folder / "dumps"
    with S3Server(folder / "s3") as server, FaultProxy(server.endpoint_url) as proxy:
        s3 = {"bucket": "flexkv", "endpoint_url": proxy.endpoint_url, "region": "us-east-1", "operation_timeout_s": 2.0}
        tables = {
            "dram": {"bytes": "2MiB", "segment_bytes": "1MiB"},
            "ssd": {"directory": str(folder / "ssd"), "bytes": "64MiB"},
            "s3": s3 | {"connect_timeout_s": 1.0, "read_timeout_s": 1.0},
            "recorder": {"directory": str(dumps)},
        }
        with DaemonProcess(folder, tables, server.environment) as daemon:
            for number in range(rounds):
                _kill_a_worker(daemon, number, chance)
                _one_round(daemon, proxy, number, chance)
            daemon.settle()
            assert daemon.process is not None
            daemon.process.send_signal(signal.SIGUSR2)
            until(lambda: any(dumps.glob("*.record")), "the dump is written")
            [file] = dumps.glob("*.record")
            faults, loop_s = daemon.faults(), daemon.metric("flexkv_loop_cpu_seconds_total")
    recording = unpack(file.read_bytes())
    results = [replayed(file, hash_seed) for hash_seed in HASH_SEEDS]
    assert all(result["verdict"] == "same" for result in results), results
    assert {result["digest"] for result in results} == {recording.digest} != {""}
    found = fault_counts(recording)
    assert found["corrupt"] > 0, "the damage was met"
    assert found.total() - found["corrupt"] > 0, "S3 failed"
    assert faults
    return {
        "events": recording.events,
        "bytes of the dump": file.stat().st_size,
        "CPU seconds of the loop": loop_s,
        "of these for the recorder, %": 100 * noting_s(recording) / loop_s,
        **{f"transfers ended by {fault}": count for fault, count in sorted(found.items())},
    }


def _kill_a_worker(daemon: DaemonProcess, number: int, chance: random.Random) -> None:
    worker = start_worker(daemon, (number + 1) * BLOCKS_PER_WORKER)
    time.sleep(chance.uniform(0, 0.1))
    worker.kill()
    worker.wait()


def _one_round(daemon: DaemonProcess, proxy: FaultProxy, number: int, chance: random.Random) -> None:
    """Save more than DRAM holds while S3 fails in turn, damage what lies on the disk, load all of it."""
    with Client(daemon.socket, GEOMETRY, timeout_s=60) as client:
        pages = Pages(client, CHAIN_BLOCKS * CHAINS_PER_ROUND)
        firsts = [(number * CHAINS_PER_ROUND + at) * CHAIN_BLOCKS for at in range(CHAINS_PER_ROUND)]
        faults = [*(each for name, each in FAULTS.items() if name not in SLOW), Faults()]
        tickets = []
        for at, first in enumerate(firsts):
            proxy.set(chance.choice(faults) if at else FAULTS[OUTAGE])
            pages.put_chain(at * CHAIN_BLOCKS, first, CHAIN_BLOCKS)
            keys, places = chain(client, first, CHAIN_BLOCKS), pages.pages(at * CHAIN_BLOCKS, CHAIN_BLOCKS)
            ack = "s3" if at % 4 == 0 else "ssd"
            tickets.append(client.save(keys, places, pages.memory, ack=ack, deadline_s=3))
        for ticket in tickets:
            ticket.wait(timeout_s=WAIT_S)
        stored = Segments(daemon.ssd)
        oldest = [key for first in firsts[: CHAINS_PER_ROUND // 4] for key in chain(client, first, CHAIN_BLOCKS)]
        there = sorted({*oldest} & {*stored.keys()})  # and most likely not in DRAM any more
        for key in chance.sample(there, min(DAMAGED_PER_ROUND, len(there))):
            record = bytearray(stored.read(key))
            record[-1 - chance.randrange(4096)] ^= 0x10
            stored.write(key, bytes(record))
        proxy.set(Faults(status=503, code="SlowDown", share=0.5))
        for first in firsts:
            keys = chain(client, first, CHAIN_BLOCKS)
            client.load(keys, pages.pages(0, CHAIN_BLOCKS), pages.memory, deadline_s=3).wait(timeout_s=WAIT_S)
        proxy.set(Faults())


def replayed(file: Path, hash_seed: str) -> dict[str, Any]:
    """What `flexkv replay-record --json` says of a dump, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, "replay-record", "--json", str(file)],
        env=ENVIRONMENT | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (result["verdict"] != "same")
    return result


def noting_s(recording: Recording) -> float:
    """CPU seconds it takes to note these events once more."""
    planner = planner_of(recording)
    events = [each for _, each in read_records(recording, planner) if not isinstance(each, bytes)]
    recorder = Recorder(planner, 64 << 20)
    began_s = time.thread_time()
    for event in events:
        recorder.note(event)
    took_s = time.thread_time() - began_s
    recorder.close()
    return took_s


def fault_counts(recording: Recording) -> Counter[str]:
    """Transfers that failed, by fault, as the planner heard of them."""
    found: Counter[str] = Counter()
    for _, event in read_records(recording, planner_of(recording)):
        if isinstance(event, TransfersFinished):
            found.update(result.fault.value for result in event.results if result.fault is not None)
    return found
