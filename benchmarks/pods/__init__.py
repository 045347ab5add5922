"""What a change costs in real pods: `python -m benchmarks.pods`. Durations are shown, never asserted.

An ElasticJob of four worker pods runs the recovery benchmark's script; a pod is deleted; the job shrinks from 4 to 2.
Times run from the start of kubectl, as a user sees them, to the steps that the worker processes log. In a cluster of
several machines, they include the differences between the clocks.
"""
