"""Every decision of the operator, one file per policy, each with its table of cases in tests/unit/operator/policies.

Pure functions of data and time; results include the reason. `planning` calls them and turns the results into actions.
"""
