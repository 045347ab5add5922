"""The workers of one agent: their environment, processes, output and failures. Knows nothing of the rendezvous."""
