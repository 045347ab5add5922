"""What a snapshot in memory costs, next to a bare copy of the same bytes."""
