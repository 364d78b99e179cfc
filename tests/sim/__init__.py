"""The seeded simulator: a whole cache in virtual time, with faults, real bytes and an oracle.

`simulation.run` is the one way in; `scripts/simulate` and the tests call it.
"""
