"""The row path, purely: who may read which frame, what may leave DRAM, what is to come back. The planner calls it."""
