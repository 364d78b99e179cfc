"""A row policy that takes over from another while requests run: until it knows all that is granted, the old decides."""

from __future__ import annotations

from flexkv_py.rows.policy import Place, RequestId, RowPolicy


class Succession:
    """Both policies as one. The new one hears what is granted and what is not any more, and nothing else yet."""

    def __init__(self, old: RowPolicy, new: RowPolicy, now_ns: int) -> None:
        self.old, self.new, self._now_ns = old, new, now_ns
        self.reported, self.absent, self.resumed = old.reported, old.absent, old.resumed
        self.coldest, self.ahead = old.coldest, old.ahead

    def granted(self, place: Place, now_ns: int) -> None:
        self.old.granted(place, now_ns)
        self.tell(place, now_ns)

    def tell(self, place: Place, now_ns: int) -> None:
        """This was granted before there was a new policy."""
        self.new.granted(place, now_ns)
        self._now_ns = now_ns

    def revoked(self, place: Place) -> None:
        self.old.revoked(place)
        self.new.granted(place, self._now_ns)  # it may not have heard of it
        self.new.revoked(place)

    def detached(self, request: RequestId) -> None:
        self.old.detached(request)
        self.new.detached(request)
