"""The flight recorder: every event the planner handled, kept in a bounded ring, and played again when that is wanted.

`ring` records, `events` turns events into bytes and back, `file` is the form of a dump, `digest` says whether two
planners are in one state, `replay` plays a dump, `dumps` keeps those written on a fault.
"""
