"""The demo: an elastic job trains on real data, loses a pod halfway, and finishes. `python -m hack.demo run`."""
