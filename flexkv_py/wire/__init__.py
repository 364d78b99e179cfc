"""Bytes on the worker socket: framing, messages, codec."""
