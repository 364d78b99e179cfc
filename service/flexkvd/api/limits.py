"""How much may be asked of the API: what may change while it is served. Read by `guard`, changed by `settings`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ApiLimits:
    """Of all clients together."""

    requests_per_s_max: float = 200.0
    body_bytes_max: int = 1 << 20
