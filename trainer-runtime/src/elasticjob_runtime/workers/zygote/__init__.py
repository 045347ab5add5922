"""Forked workers: a process that has imported torch, from which every worker is forked in milliseconds."""
