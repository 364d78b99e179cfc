"""Clients of the daemon: blocking for workers, asyncio for the rest, one protocol state."""
