"""Whether a configuration can work on this machine, found out before anything is opened.

Owns the checks that need a look at files, memory and disks, and only looks; what a file alone can get
wrong is `config`'s. Called by `main`, for `--check-config` and before every start. Another daemon on
the same socket or directory is no fault of the configuration: it is met, and named, at start. For a directory
`--check-config` warns of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from flexkv_py.errors import FlexKVError
from flexkvd import file_limit, socket_file
from flexkvd.api.table import ApiTable
from flexkvd.api.tls import tls_context
from flexkvd.api.tokens import Tokens
from flexkvd.config import Config, read_token
from flexkvd.stores import s3_config, ssd_wanted
from flexkvd.tier_tables import S3Table, SsdTable
from flexkvd.toml_tables import bad_config, format_size


def problems(config: Config) -> list[FlexKVError]:
    """Everything that would end a start at once, or let a tier never work; empty: it can start."""
    checks: list[Callable[[], None]] = [
        lambda: socket_file.check_path(config.daemon.socket, "[daemon] socket"),
        lambda: _check_api_socket(config),
        lambda: _check_token(config.daemon.token_file, "[daemon] token_file"),
        lambda: _check_api_files(config.api),
        lambda: _check_memory(config.dram.bytes),
    ]
    if (ssd := config.ssd) is not None:
        checks.append(lambda: _check_ssd(ssd))
    if (s3 := config.s3) is not None:
        checks += [lambda: _check_s3(s3), lambda: _check_ca_bundle(s3)]
    found = [problem for check in checks if (problem := _problem(check)) is not None]
    if not found:  # sizes that were refused say nothing of the files they would need
        found += [problem for problem in [_problem(lambda: file_limit.check(config))] if problem is not None]
    return found


def warnings(config: Config) -> Iterator[str]:
    """What works, though not as well as configured. Only for a configuration without problems."""
    yield from file_limit.warnings(config)
    if config.ssd is None:
        return
    from flexkv_tiers.ssd.directory import look  # noqa: PLC0415 - only a daemon with a disk tier needs it
    from flexkv_tiers.ssd.inspection import room_in  # noqa: PLC0415 - likewise

    wanted = ssd_wanted(config.ssd)
    plan = look(wanted.directories, forget_missing=wanted.forget_missing)
    if plan.forgotten_count or plan.outdated:
        emptied = ", ".join(map(str, plan.outdated)) or "none"
        yield (
            f'[ssd] missing_directory = "forget": what {plan.forgotten_count} missing directories of the set held is '
            f"given up for good; to be emptied, because out of date: {emptied}"
        )
    for directory in wanted.directories:
        room = room_in(directory, wanted.reserve_bytes)
        yield from _warnings_of_disk(directory, wanted.share_bytes, room.file_system_bytes, room.usable_bytes)


def held_now(config: Config) -> Iterator[str]:
    """Directories that somebody uses at this moment: a start now would end there. Only for a configuration that can."""
    if config.ssd is None:
        return
    from flexkv_tiers.ssd.directory import holder  # noqa: PLC0415 - only a daemon with a disk tier needs it

    for directory in ssd_wanted(config.ssd).directories:
        if (who := holder(directory)) is not None:
            yield f"a start now would be refused ({who})"


def _warnings_of_disk(directory: Path, wanted_bytes: int, whole_bytes: int, room_bytes: int) -> Iterator[str]:
    """`wanted_bytes` is this directory's share of the capacity."""
    if not whole_bytes:
        return  # a file system without a size of its own
    if wanted_bytes > whole_bytes:
        yield (
            f"[ssd] bytes wants {wanted_bytes} in {directory}, more than its whole file system holds ({whole_bytes}): "
            "the tier will run full at that; lower bytes, or name a directory on a larger disk"
        )
    elif wanted_bytes > room_bytes:
        yield (
            f"[ssd] bytes wants {wanted_bytes} in {directory}, yet its file system has {room_bytes} for it now, beyond "
            "the reserve: the tier will run full at that; free space there, or lower bytes"
        )


def _problem(check: Callable[[], None]) -> FlexKVError | None:
    try:
        check()
    except FlexKVError as error:
        return error
    return None


def _check_api_socket(config: Config) -> None:
    if config.api.host or not config.api.socket:
        return
    if os.path.realpath(config.api.socket) == os.path.realpath(config.daemon.socket):
        raise bad_config(
            f"[daemon] socket and [api] socket are both {config.api.socket!r}: give the REST API a path of its own, "
            'or [api] socket = "" for none'
        )
    socket_file.check_path(config.api.socket, "[api] socket")


def _check_token(path: str, key_name: str) -> None:
    read_token(path, key_name)


def _check_api_files(table: ApiTable) -> None:
    Tokens.read(table.token_file)
    if table.tls_certificate_file:
        tls_context(table)


def _check_memory(wanted_bytes: int) -> None:
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted_bytes > machine_bytes:
        raise bad_config(
            f"[dram] bytes = {format_size(wanted_bytes)}, but this machine has {machine_bytes / (1 << 30):.1f} GiB of "
            "memory in all: lower it, and leave room for the workers"
        )


def _check_ssd(table: SsdTable) -> None:
    from flexkv_tiers.ssd import inspection  # noqa: PLC0415 - only a daemon with a disk tier needs it

    inspection.check(ssd_wanted(table))


def _check_s3(table: S3Table) -> None:
    """Names and values that no S3 can have, and keys that contradict each other. Raises FlexKVError."""
    s3_config(table)


def _check_ca_bundle(table: S3Table) -> None:
    try:
        if table.ca_bundle:
            with Path(table.ca_bundle).open("rb"):
                pass
    except OSError as error:
        raise bad_config(
            f"[s3] ca_bundle = {table.ca_bundle!r} cannot be read ({error.strerror}): name a readable file of "
            "certificates, or leave it empty for the system's"
        ) from error
