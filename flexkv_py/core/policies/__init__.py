"""Eviction orders, one file each, behind one protocol."""
