"""Benchmarks: each measures on one machine in one run. None asserts a duration."""
