"""The objects that the operator creates for a job, as plain dicts. Pure, and independent of what already exists."""
