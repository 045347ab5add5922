"""Every decision of the operator, one file per policy, each with its table of cases in tests/unit/operator/policies.

Pure: data and the time in, data and the reason out. `planning` asks them in order and turns what they say into actions.
"""
