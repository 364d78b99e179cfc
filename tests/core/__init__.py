"""Events in, instructions out: the planner alone."""
