"""All jobs and the operator, from the operator's metrics."""

from __future__ import annotations

from hack.dashboards.panels import Json, Panel, Query, Row, dashboard

CONDITIONS = (
    ("Running", "jobs that are training", ()),
    ("Degraded", "jobs that train with fewer worker pods than requested", ((1, "orange"),)),
    ("Restarting", "jobs whose training is interrupted", ((1, "orange"),)),
    ("Stalled", "jobs that report no progress: kubectl describe elasticjob says since when", ((1, "red"),)),
    ("Suspended", "jobs that wait, for a queue or for a person", ()),
    ("Failed", "jobs that failed and still exist", ((1, "red"),)),
)


def _quantile(share: float, metric: str, by: str = "", window: str = "1h") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (increase({metric}_bucket[{window}])))"


def _jobs() -> Row:
    numbers = [
        Panel(
            title=condition,
            kind="stat",
            text=f"Number of {text}.",
            queries=[Query(f'max(elasticjob_jobs{{condition="{condition}"}}) or vector(0)')],
            thresholds=thresholds,
            width=4,
            height=4,
        )
        for condition, text, thresholds in CONDITIONS
    ]
    over_time = Panel(
        title="Jobs by condition",
        text="Jobs for which each condition is True. A job can have several.",
        queries=[Query("max by (condition) (elasticjob_jobs)", "{{condition}}")],
        width=12,
    )
    created = Panel(
        title="Worker pods created",
        text="A high rate without new jobs means that pods are lost or fail.",
        queries=[Query("sum(increase(elasticjob_pods_created_total[$__rate_interval]))", "pods")],
        width=12,
    )
    return Row("Jobs", [*numbers, over_time, created])


def _recovery() -> Row:
    return Row(
        "Recovery",
        [
            Panel(
                title="Restarts by cause",
                text="Failures that count towards maxRestarts, in an hour.",
                queries=[Query("sum by (cause) (increase(elasticjob_restarts_total[1h]))", "{{cause}}")],
                stacked=True,
            ),
            Panel(
                title="Time to resume, 90th percentile",
                text="From a change of the worker group to the first step of the new round, by reason, over an hour. "
                "Needs scripts that report progress.",
                unit="s",
                queries=[Query(_quantile(0.9, "elasticjob_time_to_resume_seconds", "reason"), "{{reason}}")],
            ),
            Panel(
                title="Rendezvous, 90th percentile",
                text="From a change of the worker group until the new round is agreed on, by reason, over an hour.",
                unit="s",
                queries=[Query(_quantile(0.9, "elasticjob_rendezvous_seconds", "reason"), "{{reason}}")],
            ),
            Panel(
                title="Steps repeated",
                text="Training steps done again after changes, in an hour. More frequent checkpoints make it fewer.",
                queries=[Query("sum by (reason) (increase(elasticjob_steps_lost_total[1h]))", "{{reason}}")],
                stacked=True,
            ),
            Panel(
                title="Time to resize",
                text="From a changed number of replicas until a worker group of that size, over an hour. Includes the "
                "wait for nodes.",
                unit="s",
                queries=[Query(_quantile(share, "elasticjob_resize_seconds"), f"{share:.0%}") for share in (0.5, 0.9)],
            ),
            Panel(
                title="Changes",
                text="New rounds in an hour, by reason.",
                queries=[Query("sum by (reason) (increase(elasticjob_rendezvous_seconds_count[1h]))", "{{reason}}")],
                stacked=True,
            ),
        ],
    )


def _operator() -> Row:
    operators = "and on (instance) elasticjob_leader"
    return Row(
        "Operator",
        [
            Panel(
                title="Leaders",
                kind="stat",
                text="One operator must be the leader. 0: training continues, but lost pods are not replaced.",
                queries=[Query("sum(elasticjob_leader) or vector(0)")],
                mappings=[(0, "none", "red"), (1, "1", "green")],
                thresholds=[(2, "red")],
                width=4,
            ),
            Panel(
                title="Queue",
                text="Jobs that wait to be reconciled, and how long the first of them has waited.",
                queries=[
                    Query("max(elasticjob_queue_depth)", "jobs"),
                    Query("max(elasticjob_queue_oldest_seconds)", "seconds"),
                ],
                width=10,
            ),
            Panel(
                title="Reconciliation",
                text="Duration of one reconciliation, and the wait before it.",
                unit="s",
                queries=[
                    Query(_quantile(0.99, "elasticjob_reconcile_seconds", window="5m"), "duration, 99 %"),
                    Query(_quantile(0.99, "elasticjob_queue_wait_seconds", window="5m"), "wait, 99 %"),
                ],
                width=10,
            ),
            Panel(
                title="API requests",
                text="Requests to the API server.",
                unit="reqps",
                queries=[
                    Query("sum by (verb, resource) (rate(elasticjob_api_requests_total[5m]))", "{{verb}} {{resource}}")
                ],
            ),
            Panel(
                title="API requests that fail",
                text="Code 0 is no response, 403 a missing permission, 409 a conflict that is retried.",
                unit="reqps",
                queries=[
                    Query(
                        'sum by (verb, resource, code) (rate(elasticjob_api_requests_total{code!~"2.."}[5m]))',
                        "{{verb}} {{resource}} {{code}}",
                    )
                ],
            ),
            Panel(
                title="Memory",
                text="Of each operator.",
                unit="bytes",
                queries=[Query(f"process_resident_memory_bytes {operators}", "{{pod}}")],
                width=4,
            ),
            Panel(
                title="CPU",
                text="Cores that each operator uses.",
                queries=[Query(f"rate(process_cpu_seconds_total[5m]) {operators}", "{{pod}}")],
                width=4,
            ),
        ],
    )


def fleet() -> Json:
    text = "All ElasticJobs, and the operator. From the operator's metrics: docs/operator-metrics.md."
    return dashboard("elasticjob-fleet", "ElasticJob / Fleet", text, [], [_jobs(), _recovery(), _operator()])
