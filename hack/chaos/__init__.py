"""Injects faults into real pods, and audits a ledger of what they cost: docs/bench/chaos.md.

script.py                             the training script in the pods, which writes the ledger
ledger.py, audit.py                   the ledger, read back; a pure audit of it
faults.py                             the faults, as data; storm.py draws random schedules of them
injections.py, expectations.py        how a fault is caused and undone; what it may cost
processes.py, network.py              pods' processes; partitions
scene.py, job.py                      the job on the cluster
run.py, report.py                     one fault on one job; the results as a table
"""
