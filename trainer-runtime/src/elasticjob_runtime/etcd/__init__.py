"""etcd v3: the port that the rendezvous uses, the client for a real etcd, and a store in memory with the same
semantics."""

from elasticjob_runtime.etcd.client import EtcdClient, connect
from elasticjob_runtime.etcd.config import CONF_KEYS, Credentials, TlsConfig
from elasticjob_runtime.etcd.endpoints import Endpoint, parse_endpoints
from elasticjob_runtime.etcd.interface import (
    Compare,
    Delete,
    Denied,
    Event,
    Full,
    Get,
    KeyRange,
    KeyValue,
    LeaseKeeper,
    LeaseLost,
    NotEtcd,
    Operation,
    Put,
    RangeResult,
    Store,
    StoreError,
    TxnResult,
    Unavailable,
    Watch,
    WatchCallback,
    WatchFailure,
    WatchUpdate,
)
from elasticjob_runtime.etcd.memory import MemoryStore

__all__ = [
    "CONF_KEYS",
    "Compare",
    "Credentials",
    "Delete",
    "Denied",
    "Endpoint",
    "EtcdClient",
    "Event",
    "Full",
    "Get",
    "KeyRange",
    "KeyValue",
    "LeaseKeeper",
    "LeaseLost",
    "MemoryStore",
    "NotEtcd",
    "Operation",
    "Put",
    "RangeResult",
    "Store",
    "StoreError",
    "TlsConfig",
    "TxnResult",
    "Unavailable",
    "Watch",
    "WatchCallback",
    "WatchFailure",
    "WatchUpdate",
    "connect",
    "parse_endpoints",
]
