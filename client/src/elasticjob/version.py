"""The version of this distribution."""

from __future__ import annotations


def version() -> str:
    """0 where it is not installed."""
    from importlib import metadata  # takes 30 ms, which no other command should pay

    try:
        return metadata.version("elasticjob")
    except metadata.PackageNotFoundError:
        return "0"
