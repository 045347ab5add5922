"""Command line and Python client for ElasticJobs."""
