"""Faults on real pods, and a ledger that tells what they cost: `python -m hack.chaos --help`, docs/chaos.md.

script.py     what trains in the pods, and writes the ledger       faults.py    the faults, as data
ledger.py     the ledger, read back                                schedule.py  random schedules, from a seed
audit.py      what is wrong with it: pure                          run.py       one fault on one job
processes.py, network.py, scene.py, job.py                         the hands: pods' processes, partitions, the job
"""
