"""Measurements, taken on one machine in one run; nothing here asserts a duration."""
