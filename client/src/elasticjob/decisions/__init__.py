"""Decisions of the client: pure functions over data, with time as a parameter."""
