"""The Python client: jobs as objects."""
