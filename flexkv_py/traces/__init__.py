"""Readers of request traces, and generators of traces with the same statistics."""
