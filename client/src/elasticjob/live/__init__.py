"""The full-screen view of `elasticjob watch`."""
