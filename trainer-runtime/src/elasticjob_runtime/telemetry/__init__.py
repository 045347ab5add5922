"""What the agent tells of itself: every change with its phases, an event log, metrics."""
