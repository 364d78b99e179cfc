"""Readers of request traces, and generators of traces with the same statistics."""

from flexkv_py.traces.reader import count_requests, open_trace
from flexkv_py.traces.request import TraceRequest

__all__ = ["TraceRequest", "count_requests", "open_trace"]
