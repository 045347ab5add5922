"""docs/reference/environment.md: the environment variables that operator, agents and scripts share."""

from __future__ import annotations

from elasticjob_runtime.contract import Env

from hack.reference.source import Assignment, assignments

INTRODUCTION = """\
# Environment variables

A flag that is given takes precedence over its variable, and a variable over the default.
Every flag of elasticrun, torchrun's included, can also be given as `PET_` and its name in capitals: `PET_NNODES`, `PET_HANG_FACTOR`.
Variables marked **reserved** cannot be set in an ElasticJob's pod template, because they would be overridden or break the job.
"""

SCRIPT = """\
## Set by the agent for worker processes

Scripts find torchrun's variables, with the same meaning:
{names}.

Those of ElasticJob:
"""


def page() -> str:
    """The page. A pure function of the contract."""
    ours = [assignment for assignment in assignments(Env) if isinstance(getattr(Env, assignment.name), str)]
    known = {getattr(Env, variable.name) for variable in ours}
    torchs = [name for name in Env.SET_BY_AGENT if name not in known]
    parts = [INTRODUCTION]
    for section in dict.fromkeys(variable.section for variable in ours):
        if section.startswith("Set by the agent"):
            parts += [SCRIPT.format(names=", ".join(f"`{name}`" for name in torchs))]
        else:
            parts += [f"## {section.rstrip('.')}", ""]
        parts += ["| variable | meaning |", "|---|---|"]
        parts += [_row(variable) for variable in ours if variable.section == section]
        parts.append("")
    return "\n".join(parts)


def _row(each: Assignment) -> str:
    value = getattr(Env, each.name)
    if not each.docstring:
        raise ValueError(f"Env.{each.name} has no docstring, which would be its meaning in the reference")
    return f"| `{value}` | {each.docstring}{' **Reserved.**' if value in Env.RESERVED else ''} |"
