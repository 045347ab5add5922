"""One job, from the metrics of its agents."""

from __future__ import annotations

from elasticjob_runtime.telemetry.metrics import State

from hack.dashboards.panels import Json, Panel, Query, Row, Variable, dashboard

JOB_LABEL = "elasticjob_dev_job_name"
"""Set by the chart's PodMonitor (podTargetLabels)."""
SELECTED = f'namespace="$namespace", {JOB_LABEL}="$name"'
COLORS = {
    State.WARMING: "blue",
    State.WAITING: "orange",
    State.TRAINING: "green",
    State.STOPPING: "purple",
    State.SPARE: "text",
    State.LEAVING: "red",
}


def _of(metric: str, *, state: State | None = None) -> str:
    """The series of the selected job."""
    more = f', state="{state.value}"' if state else ""
    return f"elasticjob_agent_{metric}{{{SELECTED}{more}}}"


def _state_number() -> str:
    """One number for each state, because a state timeline shows values."""
    numbered = (f"{number} * ({_of('state', state=state)} == 1)" for number, state in enumerate(State, 1))
    return f"max by (pod) ({' or '.join(numbered)})"


def _now() -> Row:
    def number(title: str, text: str, expr: str, unit: str = "short") -> Panel:
        return Panel(title=title, text=text, kind="stat", queries=[Query(expr)], unit=unit, width=4, height=4)

    behind = f"max({_of('step')}) - max({_of('last_checkpoint_step')})"
    return Row(
        "Now",
        [
            number("Step", "Training step that rank 0 reported.", f"max({_of('step')})"),
            number("Steps per second", "Training speed.", f"max({_of('steps_per_second')})"),
            number("World size", "Worker processes in the current round.", f"max({_of('world_size')})"),
            number("Worker pods training", "Agents in state training.", f"sum({_of('state', state=State.TRAINING)})"),
            number("Round", "Each restart or resize begins a new round.", f"max({_of('round')})"),
            number("Steps since checkpoint", "Repeated if all worker pods are lost now.", behind),
        ],
    )


def _progress() -> Row:
    return Row(
        "Progress",
        [
            Panel(
                title="Steps per second",
                text="A drop without a smaller world size is worth a look at data loading and at the slowest node.",
                queries=[Query(f"max({_of('steps_per_second')})", "steps per second")],
            ),
            Panel(
                title="Step and checkpoint",
                text="The distance between the lines is what a loss of all worker pods would cost.",
                queries=[
                    Query(f"max({_of('step')})", "step"),
                    Query(f"max({_of('last_checkpoint_step')})", "last checkpoint"),
                ],
            ),
            Panel(
                title="World size",
                text="Worker processes in the current round.",
                queries=[Query(f"max({_of('world_size')})", "worker processes")],
            ),
        ],
    )


def _members() -> Row:
    states = [(number, state.value, COLORS[state]) for number, state in enumerate(State, 1)]
    return Row(
        "Worker pods",
        [
            Panel(
                title="State of each worker pod",
                text="What each agent is doing.",
                kind="state-timeline",
                queries=[Query(_state_number(), "{{pod}}")],
                mappings=states,
                width=12,
                height=10,
            ),
            Panel(
                title="Worker pods by state",
                text="spare: beyond the allowed size, ready to replace a lost one.",
                queries=[Query(f"sum by (state) ({_of('state')})", "{{state}}")],
                stacked=True,
                width=12,
                height=10,
            ),
        ],
    )


def _changes() -> Row:
    phase = "by (phase) (increase({}[10m]))"
    seconds, count = (phase.format(_of(f"phase_seconds_{each}")) for each in ("sum", "count"))
    return Row(
        "Changes",
        [
            Panel(
                title="Restarts by cause",
                text="Starts of worker processes after the first, as seen by the agent with most of them.",
                queries=[Query(f"max by (cause) (increase({_of('restarts_total')}[10m]))", "{{cause}}")],
            ),
            Panel(
                title="Where the time of a change goes",
                text="Mean duration of each phase, over ten minutes. docs/elasticrun.md explains the phases.",
                unit="s",
                queries=[Query(f"sum {seconds} / sum {count}", "{{phase}}")],
            ),
            Panel(
                title="Steps repeated",
                text="Training steps done again after changes, in ten minutes.",
                queries=[Query(f"max(increase({_of('steps_lost_total')}[10m]))", "steps")],
            ),
            Panel(
                title="Heartbeats missed",
                text="Times that a neighbor fell silent, in ten minutes. Many for one pod: check its node and network.",
                queries=[Query(f"sum by (pod) (increase({_of('heartbeats_missed_total')}[10m]))", "{{pod}}")],
                width=12,
            ),
            Panel(
                title="etcd unreachable",
                text="Agents that cannot reach etcd. Training continues; changes wait.",
                queries=[Query(f"count({_of('store_up')} == 0) or vector(0)", "agents")],
                thresholds=[(1, "red")],
                width=12,
            ),
        ],
    )


def job() -> Json:
    text = (
        "One ElasticJob, from the metrics of its agents: its command needs --metrics-port, and the chart's PodMonitor."
    )
    variables = [
        Variable("namespace", "Namespace", "label_values(elasticjob_agent_round, namespace)"),
        Variable("name", "Job", f'label_values(elasticjob_agent_round{{namespace="$namespace"}}, {JOB_LABEL})'),
    ]
    rows = [_now(), _progress(), _members(), _changes()]
    return dashboard("elasticjob-job", "ElasticJob / Job", text, variables, rows)
