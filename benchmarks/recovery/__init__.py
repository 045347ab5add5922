"""What each change costs under torchrun, under torchft and under elasticrun: `python -m benchmarks.recovery`.

All go through the same changes on one machine, in turn: four agents of one worker process each on loopback, DDP over
gloo, steps of 20 ms. Durations are shown, never asserted.
"""
