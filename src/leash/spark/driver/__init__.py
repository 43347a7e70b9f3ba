"""The planning side of a source: one per query, in the driver's planner process."""
