"""A wrong `spec.rendezvous` or `spec.checkpoint` is rejected with its field, its value and what to do about it."""

from __future__ import annotations

import pytest

from tests.integration.manifests import Case, Cluster, api, changed, empty

__all__ = ["api", "empty"]

INVALID = {
    "unknown backend": Case({"spec.rendezvous.backend": "zeus"}, ('supported values: "etcd-v3", "etcd-v2", "c10d"',)),
    "c10d with an endpoint": Case(
        {"spec.rendezvous": {"backend": "c10d", "endpoint": "etcd:2379"}},
        (
            "spec.rendezvous.endpoint",
            "endpoint etcd:2379 is not used by backend c10d, whose store is in worker pod 0: remove it",
        ),
    ),
    "c10d with a managed etcd": Case(
        {"spec.rendezvous": {"backend": "c10d", "etcd": {}}}, ("but backend is c10d: remove it",)
    ),
    "etcd-v2 without an endpoint": Case(
        {"spec.rendezvous.backend": "etcd-v2"},
        ("backend etcd-v2 needs an endpoint: set host:port of an etcd up to 3.5 with --enable-v2",),
    ),
    "endpoint with another scheme": Case(
        {"spec.rendezvous.endpoint": "http://etcd:2379"},
        ("endpoint http://etcd:2379 is neither host:port nor https://host:port: use one such as https://",),
    ),
    "endpoint without a port": Case({"spec.rendezvous.endpoint": "etcd"}, ("endpoint etcd is neither host:port nor",)),
    "https endpoint without a port": Case(
        {"spec.rendezvous.endpoint": "https://etcd"}, ("endpoint https://etcd is neither host:port nor",)
    ),
    "https endpoint with a path": Case(
        {"spec.rendezvous.endpoint": "https://etcd:2379/v3"}, ("endpoint https://etcd:2379/v3 is neither host:port",)
    ),
    "https endpoint with a port that is none": Case(
        {"spec.rendezvous.endpoint": "https://etcd:65536"}, ("endpoint https://etcd:65536 has no port from 1 to 65535",)
    ),
    "https endpoint with etcd-v2": Case(
        {"spec.rendezvous": {"backend": "etcd-v2", "endpoint": "https://etcd:2379"}},
        ("spec.rendezvous.endpoint", "starts with https://, which backend etcd-v2 does not understand"),
    ),
    "credentials without TLS": Case(
        {"spec.rendezvous": {"endpoint": "etcd:2379", "secretName": "mine"}},
        (
            "spec.rendezvous.secretName",
            "secretName mine has credentials, which are sent over TLS only: set endpoint to",
        ),
    ),
    "credentials without an endpoint": Case(
        {"spec.rendezvous.secretName": "mine"}, ("which are sent over TLS only: set endpoint to https://host:port",)
    ),
    "invalid secret name": Case(
        {"spec.rendezvous": {"endpoint": "https://etcd:2379", "secretName": "My Secret"}},
        ("secretName My Secret cannot be the name of a Secret: use a-z, 0-9, - and .",),
    ),
    "two etcd members": Case(
        {"spec.rendezvous.etcd": {"members": 2, "storage": {}}},
        ("members is 2: use 1, or 3 to survive the loss of a member",),
    ),
    "three etcd members without storage": Case(
        {"spec.rendezvous.etcd": {"members": 3}},
        ("3 members need storage, because a member that returns without its data cannot take part: set storage: {}",),
    ),
    "a single etcd member with storage": Case(
        {"spec.rendezvous.etcd": {"storage": {}}},
        ("a single member needs no storage, because its data can be recreated at any moment: remove storage",),
    ),
    "storage of no size": Case(
        {"spec.rendezvous.etcd": {"members": 3, "storage": {"size": "big"}}},
        ("big is not a quantity of at least 0: use one such as 500m, 2 or 1Gi",),
    ),
    "endpoint and managed etcd": Case(
        {"spec.rendezvous.endpoint": "etcd:2379", "spec.rendezvous.etcd": {}},
        ("endpoint is the address of one that you run: remove one of them",),
    ),
    "not a quantity": Case(
        {"spec.rendezvous.etcd.resources.limits": {"cpu": "lots"}},
        ("lots is not a quantity of at least 0: use one such as 500m, 2 or 1Gi",),
    ),
    "relative directory": Case(
        {"spec.checkpoint.directory": "out"}, ("directory out is not an absolute path below /",)
    ),
    "root directory": Case({"spec.checkpoint.directory": "/"}, ("directory / is not an absolute path below /",)),
    "volume without a source": Case({"spec.checkpoint.volume": {}}, ("set exactly one kind of volume",)),
    "volume with two sources": Case(
        {"spec.checkpoint.volume": {"emptyDir": {}, "nfs": {}}}, ("set exactly one kind of volume",)
    ),
    "claim without a name": Case(
        {"spec.checkpoint.volume": {"persistentVolumeClaim": {}}},
        ("spec.checkpoint.volume.persistentVolumeClaim.claimName: Required",),
    ),
    "port zero": Case(
        {"spec.rendezvous.endpoint": "etcd:0"}, ("endpoint etcd:0 has no port from 1 to 65535: use one such as 2379",)
    ),
    "port above 65535": Case(
        {"spec.rendezvous.endpoint": "etcd:65536"}, ("endpoint etcd:65536 has no port from 1 to 65535",)
    ),
    "several endpoints": Case(
        {"spec.rendezvous.endpoint": "a:2379,b:2379"}, ("endpoint a:2379,b:2379 is neither host:port",)
    ),
    "backend in capitals": Case(
        {"spec.rendezvous.backend": "C10D"}, ('Unsupported value: "C10D": supported values: "etcd-v3"',)
    ),
    "image with a space": Case(
        {"spec.rendezvous.etcd.image": "etcd :3.6"}, ("image etcd :3.6 contains whitespace: use one such as",)
    ),
    "negative CPU": Case(
        {"spec.rendezvous.etcd.resources.limits": {"cpu": "-1"}},
        ("-1 is not a quantity of at least 0: use one such as 500m, 2 or 1Gi",),
    ),
    "requests above the limits": Case(
        {"spec.rendezvous.etcd.resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}},
        ('requests for ["memory"] exceed the limits: lower the requests or raise the limits',),
    ),
    "directory with ..": Case(
        {"spec.checkpoint.directory": "/a/../b"}, ("directory /a/../b is not an absolute path below /", "or ..")
    ),
    "directory with a trailing slash": Case(
        {"spec.checkpoint.directory": "/a/"}, ("directory /a/ is not an absolute path", "without a trailing /")
    ),
    "invalid claim name": Case(
        {"spec.checkpoint.volume": {"persistentVolumeClaim": {"claimName": "My Claim"}}},
        ("claimName My Claim cannot be the name of a PersistentVolumeClaim: use a-z, 0-9, - and .",),
    ),
    "checkpoints in a ConfigMap": Case(
        {"spec.checkpoint.volume": {"configMap": {"name": "c"}}}, ('unknown field "spec.checkpoint.volume.configMap"',)
    ),
}


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_manifest_is_rejected_with_field_value_and_remedy(empty: Cluster, case: Case) -> None:
    message = empty.rejection(changed(case.changes))
    for words in case.words:
        assert words in message
