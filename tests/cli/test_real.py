"""`flexkv replay` with real bytes: a real daemon, real sockets, a real S3 server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

from flexkv_py.core.messages import Tier
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli import main
from flexkvd.cli.cpu import cpu_seconds, owner_of
from flexkvd.cli.pattern import Pattern
from flexkvd.cli.spawn import MIB, Sizes, SpawnedDaemon, config_template, split_s3_url
from flexkvd.cli.traffic import ReplayClient, Target
from flexkvd.config import parse_config

BLOCK_BYTES = 32 * 1024
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def daemon():
    """A daemon with DRAM only."""
    with SpawnedDaemon(Sizes(dram_bytes=64 * MIB)) as spawned:
        spawned.wait_ready()
        yield spawned


@pytest.fixture
def trace(tmp_path):
    """Two rounds over 16 conversations of 40 blocks: the second round finds what still fits somewhere."""
    path = tmp_path / "trace.jsonl"
    with path.open("w") as file:
        for _ in range(2):
            for conversation in range(16):
                ids = [0, *range(1 + 1000 * conversation, 40 + 1000 * conversation)]
                line = {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
                file.write(json.dumps(line) + "\n")
    return path


def test_every_tier_is_hit_and_the_ledger_agrees(trace, tmp_path):
    """DRAM, SSD and S3 sized so that all serve hits: no wrong byte, and the daemon counts what the run counts."""
    result = tmp_path / "result.json"
    sizes = ["--dram-bytes", "4MiB", "--ssd-bytes", "12MiB", "--s3-url", "auto", "--block-bytes", "32KiB"]
    assert main(["replay", str(trace), "--spawn", *sizes, "--clients", "2", "--json", str(result)]) == 0
    written = json.loads(result.read_text())
    assert written["wrong_blocks"] == 0
    assert written["ledger_equal"]
    assert all(written["hit_blocks"][tier] for tier in ("dram", "ssd", "s3")), written["hit_blocks"]
    assert written["requests"] == 32
    assert written["daemon_cpu_s"] > 0


def test_a_wrong_byte_is_seen(daemon):
    """A block that comes back with other bytes than its id says is counted and named."""
    target = Target(daemon.socket, BLOCK_BYTES, 512)
    foreign = Pattern(BLOCK_BYTES)
    foreign._base[17] ^= np.uint64(1 << 40)
    with ReplayClient(target, target.geometry(), foreign) as writer:
        writer.serve(range(5))
    with ReplayClient(target, target.geometry(), Pattern(BLOCK_BYTES)) as reader:
        reader.serve(range(5))
    assert reader.ledger.hits[Tier.DRAM] == reader.ledger.wrong_count == 5
    assert reader.ledger.wrong[0] == "block 0 from dram"


def test_a_count_that_differs_is_named(daemon):
    """What another client did meanwhile makes the daemon's counts differ from the run's own."""
    target = Target(daemon.socket, BLOCK_BYTES, 512)
    before = daemon.admin.metrics()
    with ReplayClient(target, target.geometry(), Pattern(BLOCK_BYTES)) as client:
        client.serve(range(3))
        assert client.ledger.differences(before, daemon.admin.metrics(), target.geometry().block_bytes) == []
        client.ledger.matched += 1
        [hits, misses] = client.ledger.differences(before, daemon.admin.metrics(), target.geometry().block_bytes)
    assert "matched_keys_total hit: the daemon counted 0, this run 1" in hits
    assert "matched_keys_total miss: the daemon counted 3, this run 2" in misses


def test_a_request_longer_than_the_clients_memory_comes_back_whole(daemon):
    """More blocks than the client has pages are saved and loaded in slices, in order."""
    target = Target(daemon.socket, BLOCK_BYTES, 512)
    with ReplayClient(target, target.geometry(), Pattern(BLOCK_BYTES)) as client:
        for _ in range(2):
            client.serve(range(600))
    assert (client.ledger.matched, client.ledger.hits[Tier.DRAM], client.ledger.wrong_count) == (600, 600, 0)


def test_patterns_of_different_blocks_share_no_word():
    """So that any mix-up of blocks or rows shows wherever it happens."""
    pattern = Pattern(4096)
    blocks = np.stack([pattern.block(number).view(np.uint64) for number in (0, 1, 2, 3_000_001)])
    assert len(np.unique(blocks)) == blocks.size


def test_cpu_and_owner_are_those_of_the_process(daemon):
    """The kernel names the daemon as the socket's owner, and has counted its start."""
    assert owner_of(daemon.socket) == daemon.pid
    assert cpu_seconds(daemon.pid) > 0.1
    assert cpu_seconds(os.getpid()) > cpu_seconds(daemon.pid)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ([], "exactly one of"),
        (["--dry", "--spawn"], "exactly one of"),
        (["--spawn", "--block-bytes", "1000"], "multiple of 4096"),
        (["--spawn", "--dram-bytes", "1000000"], "multiple of 1 MiB"),
        (["--spawn", "--s3-url", "nonsense"], "http://host:port/bucket/prefix"),
        (["--socket", "/nowhere/worker.sock", "--dram-bytes", "64MiB"], "--dram-bytes does nothing with --socket"),
        (["--dry", "--ssd-bytes", "64MiB"], "--ssd-bytes does nothing with --dry: leave it out, or use --spawn"),
        (["--dry", "--clients", "2"], "use --socket or --spawn"),
        (["--spawn", "--admin", "x"], "--admin does nothing with --spawn"),
        (["--spawn", "--dram-bytes", "1MiB", "--block-bytes", "2MiB"], "larger than all of --dram-bytes 1048576"),
    ],
)
def test_bad_arguments_end_with_code_two(trace, capsys, arguments, cause):
    """Each names what was wrong with it, and nothing is left running."""
    assert main(["replay", str(trace), *arguments]) == 2
    assert cause in capsys.readouterr().err


def test_nobody_at_the_socket_ends_with_code_three(trace, capsys):
    """The socket that was tried is named, with what to do."""
    assert main(["replay", str(trace), "--socket", "/nowhere/worker.sock"]) == 3
    assert "/nowhere/worker.sock" in capsys.readouterr().err


def test_a_running_daemon_is_replayed_against_with_its_token(trace, tmp_path, capsys):
    """The admin socket beside the worker socket is found by itself; a wrong token is told."""
    for name, word in (("right", "sesame"), ("wrong", "open")):
        (tmp_path / name).write_text(word + "\n")
    config = tmp_path / "flexkvd.toml"
    config.write_text(
        f'[daemon]\nsocket = "{tmp_path}/w.sock"\ntoken_file = "{tmp_path}/right"\n'
        f'[api]\nsocket = "{tmp_path}/admin.sock"\n[dram]\nbytes = "16MiB"\nsegment_bytes = "4MiB"\n'
    )
    command = [sys.executable, "-m", "flexkvd.main", "--config", str(config)]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until((tmp_path / "admin.sock").exists)
            run = ["replay", str(trace), "--socket", str(tmp_path / "w.sock"), "--limit", "2", "--token-file"]
            assert main([*run, str(tmp_path / "right")]) == 0
            assert main([*run, str(tmp_path / "wrong")]) == 4
            assert "[unauthenticated]" in capsys.readouterr().err
        finally:
            process.terminate()


def test_the_daemon_dies_with_the_run():
    """A SIGKILL of the run takes its daemon along."""
    program = (
        "from flexkvd.cli.spawn import Sizes, SpawnedDaemon; daemon = SpawnedDaemon(Sizes(dram_bytes=1 << 22)); "
        "daemon.wait_socket(); print(daemon.pid, daemon.socket, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        pid, path = run.stdout.readline().split()
        run.kill()
    wait_until(lambda: gone(int(pid)))
    shutil.rmtree(Path(path).parent)


def gone(pid):
    """Whether the process has ended, be it that nobody has waited for it yet."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(reached, seconds=15.0):
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_daemon_that_does_not_start_says_why():
    """The end of its log is in the error: here, a segment larger than the arena allows."""
    with pytest.raises(FlexKVError, match="ssd") as caught, SpawnedDaemon(Sizes(ssd_bytes=1)) as spawned:
        spawned.wait_ready()
    assert caught.value.code is ErrorCode.NOT_READY


def test_s3_urls_are_cut_up():
    """Endpoint, bucket and prefix; without a prefix the run takes its own."""
    assert split_s3_url("http://127.0.0.1:8333/kv/a/b") == ("http://127.0.0.1:8333", "kv", "a/b")
    assert split_s3_url("https://s3.example/kv") == ("https://s3.example", "kv", "replay")


@pytest.mark.parametrize(("host", "sign"), [("127.0.0.1:8333", "never"), ("localhost:80", "never"), ("s3:80", "auto")])
def test_uploads_to_a_server_of_our_own_are_not_signed_over_their_bytes(host, sign):
    """On loopback the signature would only cost CPU; anywhere else the daemon decides."""
    text = config_template(Sizes(s3_url=f"http://{host}/kv")).substitute(folder="/x")
    assert parse_config(tomllib.loads(text)).s3.sign_payload == sign
