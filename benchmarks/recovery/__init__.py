"""How long training stops after a fault, under torchrun and under elasticrun: `python -m benchmarks.recovery`.

Both run the same script on the same machine in the same run: four agents of one worker process each on loopback.
Durations are shown, never asserted.
"""
