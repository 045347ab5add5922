"""Pure: a job in a queue of Kueue. Which Workloads it has, how many worker pods they admit and where, and what is
written to them. The contract and the reasons: docs/design/0030-queues.md.
"""
