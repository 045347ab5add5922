"""Which credentials operator and worker pods use for an etcd that the operator does not run, and what to do if they are
not accepted.

    the etcd of                    the operator connects with        worker pods get
    spec.rendezvous.endpoint       spec.rendezvous.secretName        the same Secret
    the operator's settings        the Secret in its settings        a user of the run, in a Secret of the job
    an etcd tier                   the Secret of the tier            a user of the run, in a Secret of the job

Credentials go only to the endpoint that they were named with.
"""

from __future__ import annotations

import dataclasses

from elasticjob_api import ElasticJob, Reason
from elasticjob_runtime.contract import DEFAULT_PREFIX

from elasticjob_operator import names
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.policies.condition_updates import Cause, cause
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Connectivity, RendezvousView


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EtcdAccess:
    secret: NamespacedName | None = None
    """The Secret with the operator's credentials. None: it has none."""
    mounted: str = ""
    """The Secret in the job's namespace that worker pods mount. Empty: none."""
    user: str = ""
    """The run's own user, in the shared etcd. Empty: it has none."""
    allowed: bool = True
    """False: the job names a Secret of the operator itself."""


NO_ACCESS = EtcdAccess()


def access_of(job: ElasticJob, settings: Settings, endpoint: str, run: int) -> EtcdAccess:
    """`endpoint`: of an etcd that the operator does not run."""
    named = job.spec.rendezvous.secret_name
    if named:
        if endpoint != job.spec.rendezvous.endpoint:
            return NO_ACCESS
        secret = (job.namespace, named)
        allowed = secret not in settings.own_secrets
        return EtcdAccess(secret=secret if allowed else None, mounted=named, allowed=allowed)
    if settings.endpoint_secret is None or endpoint != settings.endpoint:
        return NO_ACCESS
    return user_of_run(job, settings.endpoint_secret, run)


def user_of_run(job: ElasticJob, secret: NamespacedName, run: int) -> EtcdAccess:
    """`secret`: with the operator's credentials for an etcd that jobs share."""
    return EtcdAccess(
        secret=secret,
        mounted=names.run_secret_name(job.name, job.uid, run),
        user=names.run_user(names.run_id(job.uid, run)),
    )


def waits_for_etcd(job: ElasticJob, access: EtcdAccess, view: RendezvousView, endpoint: str) -> Cause | None:
    """Why no worker pod is created: with wrong credentials, each would fail. None: nothing to wait for.

    A user of a run is created only once etcd has a key of the run, because those keys show what is left to clean up.
    """
    reachable = view.connectivity is Connectivity.REACHABLE
    ready = reachable and view.spec is not None if access.user else reachable or job.status.round > 0
    return None if access.secret is None or ready else cause(Reason.WAITING_FOR_ETCD, endpoint=endpoint)


_CHECK_CLOCKS = (
    "Check the clocks of the nodes, and that the Secret with the operator's certificate authority was not replaced. To "
    "get new certificates, suspend the job and resume it."
)


def remedy(access: EtcdAccess, view: RendezvousView, *, managed: bool) -> str:
    """What to do about `view.error`, as a sentence after it; empty: nothing is known."""
    if view.connectivity is Connectivity.UNTRUSTED:
        return f". {_CHECK_CLOCKS if managed else _of_certificates(access, view.error)}"
    found = "" if managed else _of_denial(access, view.error)
    return f". {found}" if found else ""


def _of_certificates(access: EtcdAccess, error: str) -> str:
    where = _place(access)
    if "operator's certificate" in error:
        return f"Put a client certificate that etcd trusts, and its key, into tls.crt and tls.key of {where}."
    return (
        f"Put the certificate of the CA that signed etcd's into ca.crt of {where}. Check also that the address is in "
        "etcd's certificate, and the clocks."
    )


def _of_denial(access: EtcdAccess, error: str) -> str:
    where = _place(access)
    if "authentication is not enabled" in error:
        if access.user:
            return "Run `etcdctl auth enable`: until then, every pod could change the keys of every job there."
        return f"Run `etcdctl auth enable`, or remove username and password from {where}."
    if "authentication failed" in error:
        return f"Check username and password in {where}."
    if "user name is empty" in error or "invalid auth token" in error:
        return f"This etcd wants a user: put username and password into {where}."
    if "permission denied" in error and access.user:
        return f"Give the user in {where} the role root: `etcdctl user grant-role USER root`."
    if "permission denied" in error:
        return (
            f"Give the user in {where} a role with rights on the prefix of all jobs: `etcdctl role grant-permission "
            f"ROLE readwrite --prefix=true {DEFAULT_PREFIX}/`."
        )
    return ""


def _place(access: EtcdAccess) -> str:
    if access.secret is None:
        return "a Secret that spec.rendezvous.secretName names"
    return f"Secret {'/'.join(access.secret)}"
