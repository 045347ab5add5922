"""What a change costs in real pods: `python -m benchmarks.pods`. Durations are shown, never asserted.

An ElasticJob of four workers runs the recovery bench's script; a pod is deleted, the job shrinks from 4 to 2. Times are
those that the workers themselves write for every step, against the moment kubectl was started: what a person sees,
kubectl's own time included. On a cluster of several machines their clocks' differences are in the figures.
"""
