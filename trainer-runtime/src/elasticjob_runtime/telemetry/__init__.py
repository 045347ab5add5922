"""What an agent records: each transition between rounds with its phases, the event log, metrics."""
