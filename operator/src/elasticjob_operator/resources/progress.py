"""The object with the newest progress of a job."""

from __future__ import annotations

from typing import Any

from elasticjob_api import API_VERSION
from elasticjob_api import KIND as JOB
from elasticjob_api.progress import KIND, JobProgress

from elasticjob_operator import names
from elasticjob_operator.names import NamespacedName


def progress_object(job: NamespacedName, uid: str, progress: JobProgress) -> dict[str, Any]:
    """As small as it can be, because it is written most often. A merge patch too: that of a deleted job of the same
    name gets the new owner."""
    namespace, name = job
    owner = {"apiVersion": API_VERSION, "kind": JOB, "name": name, "uid": uid, "controller": True}
    labels = {"app.kubernetes.io/managed-by": names.FIELD_MANAGER, names.LABEL_JOB: name}
    metadata = {"namespace": namespace, "name": name, "labels": labels, "ownerReferences": [owner]}
    empty = {"progress": None, "optimizerSteps": None}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, **empty, **progress.to_api()}
