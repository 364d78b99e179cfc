"""The pure planner: events in, instructions out. It never waits, and knows no clock."""
