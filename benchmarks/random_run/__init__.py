"""A long training in place with random faults, compared with an undisturbed one: `python -m benchmarks.random_run`.

Four agents of one worker process each on loopback. Every few seconds a worker process is killed or frozen, two are
killed at once, an agent is killed with its worker process and replaced, a member leaves or one joins. At the end,
weights, optimizers, buffers and the samples of each step must be those of one process that trained undisturbed, bit by
bit.
"""
