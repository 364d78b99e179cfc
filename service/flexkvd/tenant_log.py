"""Which tenant each namespace is, and quotas set while the daemon ran, written down so that a restart knows both.

Owns one small file, the same in each of its directories. Records on SSD and in S3 know their namespace, which is a
digest: without this file their bytes would count for nobody until a session of the tenant comes. Used by `tenants`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import NAMESPACE_BYTES, NamespaceDigest
from flexkv_py.tenants.owner import Quota
from flexkv_py.tenants.registry import NAMESPACES_MAX
from flexkvd.reset_log import replace_file

FILE_NAME = "flexkv.tenants"
FORMAT = "flexkv-tenants"
VERSION = 1


class _Content(msgspec.Struct):
    """What stands in the file: namespaces as hex digits, each with its tenant, the one named last at the end."""

    format: str
    version: int
    namespaces: list[tuple[str, str]]
    quotas: dict[str, Quota]


class TenantLog:
    """The file in each of `directories`. Each change replaces it as a whole, synced, in a thread.

    A namespace is written down as soon as it is first named, beside what its session does: a crash within these
    milliseconds costs no more than that its blocks count for nobody until it is named again.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        """Make the directories, if need be, and read what earlier lives wrote. Raises FlexKVError."""
        assert directories
        self._paths = [directory / FILE_NAME for directory in directories]
        self._writing = asyncio.Lock()
        self.names: dict[NamespaceDigest, str] = {}
        self.quotas: dict[str, Quota] = {}
        for directory in directories:
            content = _left_in(directory)
            self.names |= {NamespaceDigest(bytes.fromhex(name)): tenant for name, tenant in content.namespaces}
            self.quotas |= content.quotas

    def learn(self, namespace: NamespaceDigest, tenant: str) -> bool:
        """A namespace is this tenant's. True when that is new, and must be written."""
        if self.names.get(namespace) == tenant:
            return False
        self.names[namespace] = tenant
        if len(self.names) > NAMESPACES_MAX:
            del self.names[next(iter(self.names))]
        return True

    async def write(self) -> None:
        """When it returns, the next life knows what is known now. Raises OSError."""
        async with self._writing:
            namespaces = [(namespace.hex(), tenant) for namespace, tenant in self.names.items()]
            content = _Content(FORMAT, VERSION, namespaces, dict(self.quotas))
            await asyncio.to_thread(_replace_all, self._paths, content)


def _left_in(directory: Path) -> _Content:
    path = directory / FILE_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        raw = path.read_bytes()
    except FileNotFoundError:
        return _Content(FORMAT, VERSION, [], {})
    except OSError as error:
        raise FlexKVError(
            ErrorCode.DIRECTORY_NOT_WRITABLE,
            f"cannot use {directory} to keep names and quotas of tenants ({error.strerror}): make it a directory the "
            "daemon's user may write, or name another as daemon.state_directory",
        ) from error
    with suppress(msgspec.DecodeError, ValueError):
        content = msgspec.json.decode(raw, type=_Content)
        whole = all(len(bytes.fromhex(name)) == NAMESPACE_BYTES for name, _ in content.namespaces)
        if (content.format, content.version) == (FORMAT, VERSION) and whole:
            return content
    raise FlexKVError(
        ErrorCode.DIRECTORY_FOREIGN,
        f"{path} is no list of tenants of this version: quotas set while the daemon ran would be lost, so put the file "
        "back as it was, or remove it, set them again, and have each tenant connect once",
    )


def _replace_all(paths: Sequence[Path], content: _Content) -> None:
    """Raises the last OSError, once all have been tried."""
    raw, failure = msgspec.json.encode(content), None
    for path in paths:
        try:
            replace_file(path, raw)
        except OSError as error:
            failure = error
    if failure is not None:
        raise failure
