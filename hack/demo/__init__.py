"""The demo: the session example loses a pod halfway, and finishes without a lost step. `python -m hack.demo run`."""
