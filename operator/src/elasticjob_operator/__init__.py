"""The ElasticJob operator: reconciles ElasticJobs into worker pods and a rendezvous service."""
