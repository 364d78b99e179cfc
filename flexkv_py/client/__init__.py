"""Clients of the daemon: blocking for workers, asyncio for the rest, one protocol state.

`flexkv_py.client.aio.AsyncClient` is the asyncio twin; it is imported where it is needed.
"""

from flexkv_py.client.arena import ArenaMap
from flexkv_py.client.client import Client
from flexkv_py.client.gates import Gates, GateState, GateWords
from flexkv_py.client.handles import Lease, MatchResult, Memory, RowRequest, Ticket
from flexkv_py.client.memory import PagedLayout, create_memory
from flexkv_py.client.requests import TicketProgress
from flexkv_py.core.messages import Outcome
from flexkv_py.wire.messages import DaemonMessage, DeviceAllocation, GoingAway, LayerLayout, Pages, ReplayRefused, Run

__all__ = [
    "ArenaMap",
    "Client",
    "DaemonMessage",
    "DeviceAllocation",
    "GateState",
    "GateWords",
    "Gates",
    "GoingAway",
    "LayerLayout",
    "Lease",
    "MatchResult",
    "Memory",
    "Outcome",
    "PagedLayout",
    "Pages",
    "ReplayRefused",
    "RowRequest",
    "Run",
    "Ticket",
    "TicketProgress",
    "create_memory",
]
