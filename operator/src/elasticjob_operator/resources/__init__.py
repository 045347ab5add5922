"""Desired objects as plain dicts: what the operator creates for a job. Pure; nothing here knows what exists already."""
