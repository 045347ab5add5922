"""The API server: credentials, requests, watches and logs. The only I/O with a cluster."""
