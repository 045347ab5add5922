"""Injects faults, and audits a ledger of what they cost.

Everything that injects faults uses the same training script, ledger and audit: the suite on real pods (`make chaos`,
docs/bench/chaos.md), and agents on this machine (benchmarks/recovery, tests/integration/runtime_session).

script.py                             the training script, which writes the ledger
ledger.py, audit.py, costs.py         the ledger, read back; a pure audit of it; what a change costs
members.py                            agents on this machine, and their faults
faults.py                             the faults, as data; storm.py draws random schedules of them
injections.py, expectations.py        how a fault is caused and undone; what it may cost
processes.py, network.py              pods' processes; partitions
scene.py, job.py                      the job on the cluster
run.py, report.py                     one fault on one job; the results as a table
"""
