"""Who may ask for what: bearer tokens and their roles.

Owns the token file's form and the comparison, which takes the same time whatever is given. Imports no web framework:
`Daemon` reads the file before anything is served, `preflight` before that.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from flexkvd.toml_tables import bad_config

TOKENS_MAX = 64
FILE_BYTES_MAX = 65_536


class Role(StrEnum):
    """What a token's holder may do; each may what the one before it may."""

    READ = "read"
    ADMIN = "admin"


ROLES = {role.value: role for role in Role}


@dataclass(frozen=True)
class Tokens:
    """All tokens with their roles. Without any, whoever reaches the API may do everything."""

    roles: tuple[tuple[bytes, Role], ...] = field(default=(), repr=False)

    @classmethod
    def read(cls, path: str, key_name: str = "[api] token_file") -> Tokens:
        """The tokens of a file; none when no file is configured. Raises FlexKVError(BAD_CONFIG)."""
        if not path:
            return cls()
        try:
            with Path(path).open(encoding="utf-8") as file:
                text = file.read(FILE_BYTES_MAX + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise bad_config(f"{key_name} = {path!r} cannot be read ({error}): name a readable text file") from error
        if len(text) > FILE_BYTES_MAX:
            raise bad_config(f"{key_name} = {path!r} is longer than {FILE_BYTES_MAX} bytes: name a file of tokens")
        try:
            return cls(tuple(_tokens(text.splitlines())))
        except ValueError as error:
            raise bad_config(f"{key_name} = {path!r}: {error}") from error

    @property
    def asked_for(self) -> bool:
        return bool(self.roles)

    def role_of(self, header: bytes) -> Role | None:
        """The role of an `Authorization` header's value; None when it names no token of ours.

        Every token is compared, so that neither how long it takes nor which is right first tells anything.
        """
        if not self.roles:
            return Role.ADMIN
        scheme, _, given = header.partition(b" ")
        given = given.strip() if scheme.lower() == b"bearer" else b""
        found: Role | None = None
        for token, role in self.roles:
            if hmac.compare_digest(given, token):
                found = role
        return found


def _tokens(lines: Iterable[str]) -> list[tuple[bytes, Role]]:
    """Raises ValueError with a sentence that holds no token."""
    found: list[tuple[bytes, Role]] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) == 1:
            words = ["admin", *words]
        if len(words) != 2 or words[0] not in ROLES:
            raise ValueError(f"line {number} is none of 'TOKEN', 'read TOKEN' and 'admin TOKEN': write one of them")
        if any(words[1].encode() == token for token, _ in found):
            raise ValueError(f"line {number} has a token that an earlier line has: give each role its own")
        found.append((words[1].encode(), ROLES[words[0]]))
    if not found:
        raise ValueError("it has no token: write one on its first line")
    if len(found) > TOKENS_MAX:
        raise ValueError(f"it has {len(found)} tokens: keep at most {TOKENS_MAX}")
    return found


def may(role: Role, needed: Role) -> bool:
    """Whether a holder of `role` may do what `needed` is asked for."""
    return role is Role.ADMIN or role is needed
