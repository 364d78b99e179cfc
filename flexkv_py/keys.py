"""Block identity: namespaces and chained block keys.

A key names a block *and its whole prefix*: it is the first 16 bytes of
SHA-256(namespace digest ‖ parent key ‖ kind ‖ content), where content is the block's tokens as
u32 little endian, or the engine's own hash. Two kinds never collide, because the kind byte differs.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NewType, cast, overload

from flexkv_py.errors import ErrorCode, FlexKVError

BlockKey = NewType("BlockKey", bytes)
NamespaceDigest = NewType("NamespaceDigest", bytes)

KEY_BYTES = 16
NAMESPACE_BYTES = 32
ROOT = BlockKey(bytes(KEY_BYTES))
"""The parent of a first block."""


class KeyKind(IntEnum):
    """What a key was derived from."""

    TOKENS = 1
    ENGINE_HASH = 2


def namespace_digest(fingerprint: bytes, tenant: str, epoch: int) -> NamespaceDigest:
    """Digest that separates geometries, tenants and weight epochs (32 bytes).

    Every part is length-prefixed and typed, so no two different triples can spell the same input.
    """
    digest = hashlib.sha256(b"flexkv-namespace-1")
    for part in (fingerprint, tenant.encode(), epoch.to_bytes(8, "little")):
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
    return NamespaceDigest(digest.digest())


def key_of_tokens(namespace: NamespaceDigest, parent: BlockKey, tokens: Iterable[int]) -> BlockKey:
    """Key of the block that holds `tokens` after `parent`."""
    return _derive(namespace, parent, KeyKind.TOKENS, _u32(tokens))


def key_of_hash(namespace: NamespaceDigest, parent: BlockKey, engine_hash: bytes) -> BlockKey:
    """Key of a block that the engine has hashed itself."""
    return _derive(namespace, parent, KeyKind.ENGINE_HASH, engine_hash)


def keys_of_tokens(
    namespace: NamespaceDigest, tokens: Sequence[int], tokens_per_block: int, parent: BlockKey = ROOT
) -> list[BlockKey]:
    """Keys of every *full* block of `tokens`, chained from `parent`."""
    packed = _u32(tokens)
    step = 4 * tokens_per_block
    keys: list[BlockKey] = []
    for start in range(0, len(packed) - step + 1, step):
        parent = _derive(namespace, parent, KeyKind.TOKENS, packed[start : start + step])
        keys.append(parent)
    return keys


def _u32(tokens: Iterable[int]) -> bytes:
    packed = array("I", tokens)
    assert packed.itemsize == 4
    return packed.tobytes()


def _derive(namespace: bytes, parent: bytes, kind: KeyKind, content: bytes) -> BlockKey:
    assert len(namespace) == NAMESPACE_BYTES
    assert len(parent) == KEY_BYTES
    return BlockKey(hashlib.sha256(namespace + parent + bytes((kind,)) + content).digest()[:KEY_BYTES])


class KeyRun(Sequence[BlockKey]):
    """Many keys as the one bytes field they travel in, cut up only where looked at.

    A match of 1,000 keys looks at about ten of them, so cutting all of them up first would cost
    more than the match.
    """

    __slots__ = ("_count", "_raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) % KEY_BYTES:
            raise FlexKVError(
                ErrorCode.BAD_KEY,
                f"the keys field has {len(raw)} bytes, which is no multiple of {KEY_BYTES}: "
                f"send every key as exactly {KEY_BYTES} bytes, joined without separators",
            )
        self._raw = raw
        self._count = len(raw) // KEY_BYTES

    @property
    def raw(self) -> bytes:
        """All keys, joined."""
        return self._raw

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> BlockKey: ...

    @overload
    def __getitem__(self, index: slice) -> list[BlockKey]: ...

    def __getitem__(self, index: int | slice) -> BlockKey | list[BlockKey]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._count))]
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(index)
        return BlockKey(self._raw[index * KEY_BYTES : (index + 1) * KEY_BYTES])

    def distinct(self) -> list[BlockKey]:
        """All keys as a list; a duplicate is an error, because one block cannot fill two places."""
        keys = cast("list[BlockKey]", list(struct.unpack(f"{KEY_BYTES}s" * self._count, self._raw)))
        if len(set(keys)) != len(keys):
            seen: set[BlockKey] = set()
            twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise FlexKVError(
                ErrorCode.DUPLICATE_KEY,
                f"key {twice.hex()} is listed twice: name each block once per message",
            )
        return keys
