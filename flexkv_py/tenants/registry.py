"""All tenants the planner knows, and which of them a namespace belongs to.

A namespace is a digest; only a session's hello, or what the daemon wrote down of earlier ones, says whose it is.
Held by the planner's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from flexkv_py.keys import NamespaceDigest
from flexkv_py.tenants.owner import NO_QUOTA, Marker, Quota
from flexkv_py.tenants.shelf import Tenant

NAMESPACES_MAX = 65_536
"""Names kept for namespaces; the one named longest ago is forgotten first, and its blocks count as unknown's."""


class Registry:
    """See the module's docstring. `made` gives a new owner its shelves."""

    def __init__(self, tenants_max: int, quotas: Mapping[str, Quota], made: Callable[[Tenant], None]) -> None:
        self.quotas = dict(quotas)
        self._tenants_max = tenants_max
        self._made = made
        self._owners: dict[str | Marker, Tenant] = {}
        self._names: dict[NamespaceDigest, str] = {}

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._owners.values())

    def learn(self, namespace: NamespaceDigest, tenant: str) -> None:
        """A namespace is this tenant's."""
        self._names.pop(namespace, None)
        self._names[namespace] = tenant
        if len(self._names) > NAMESPACES_MAX:
            del self._names[next(iter(self._names))]

    def owner_of(self, namespace: NamespaceDigest) -> Tenant:
        """Whose the blocks of a namespace are."""
        name = self._names.get(namespace)
        return self._owner(Marker.UNKNOWN) if name is None else self.named(name)

    def name_of(self, namespace: NamespaceDigest) -> str:
        """The tenant's name, also of one that counts among others; empty when it is not known."""
        return self._names.get(namespace, "")

    def named(self, name: str) -> Tenant:
        """The tenant called so; when as many are known as may be, what stands for all others."""
        full = name not in self._owners and sum(isinstance(known, str) for known in self._owners) >= self._tenants_max
        return self._owner(Marker.OTHERS if full else name)

    def find(self, name: str | Marker) -> Tenant | None:
        """An owner that is known."""
        return self._owners.get(name)

    def forget(self, owner: Tenant) -> None:
        """A tenant that has nothing anywhere any more makes place for others."""
        del self._owners[owner.name]

    def _owner(self, name: str | Marker) -> Tenant:
        owner = self._owners.get(name)
        if owner is None:
            quota = self.quotas.get(name, NO_QUOTA) if isinstance(name, str) else NO_QUOTA
            owner = self._owners[name] = Tenant(name, quota)
            self._made(owner)
        return owner
