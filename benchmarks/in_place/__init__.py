"""What a change costs when training continues in place: `python -m benchmarks.in_place`.

Tuned torchrun, elasticrun with restarts (level 1), elasticrun in place (level 2) and torchft, in turn on the same
machine in the same run: four agents of one worker process each on loopback. Durations are shown, never asserted.
"""
