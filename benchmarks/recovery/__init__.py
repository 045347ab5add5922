"""How long training stands still after a fault, with torchrun and with elasticrun: `python -m benchmarks.recovery`.

The same script, the same machine, the same run: 4 agents of one worker each on loopback. Durations are shown, never
asserted.
"""
