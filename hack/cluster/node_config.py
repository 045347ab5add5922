"""The configuration files of a node's programs, as pure functions. Paths are as the node sees them (`node_main`)."""

from __future__ import annotations

import json

import yaml

from .images import PAUSE
from .settings import DNS_ADDRESS, NodeAddress

CNI_FOLDER = "/var/lib/cni/net.d"
CNI_PLUGINS = "/usr/lib/cni"
POD_LOGS = "/var/log/pods"
SOCKET = "/run/containerd/containerd.sock"


def containerd_config() -> str:
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  # A machine that may not lower oom_score_adj makes runc fail with "can't get final child's PID".
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{CNI_PLUGINS}"]
  conf_dir = "{CNI_FOLDER}"
"""


def cni_config(node: NodeAddress) -> str:
    address_management = {
        "type": "host-local",
        "ranges": [[{"subnet": node.pod_range}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": address_management,
    }
    port_map = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "elasticjob", "plugins": [bridge, port_map]})


def kubelet_config(certificate_authority: str, empty_file: str) -> str:
    """`empty_file`: pods that use the node's own DNS find no server in it, as there is none."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": certificate_authority},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": empty_file,
            "podLogsDir": POD_LOGS,
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            # Notice changes quickly, and report them quickly.
            "nodeStatusUpdateFrequency": "1s",
            "nodeLeaseDurationSeconds": 4,
            "syncFrequency": "10s",
            "serializeImagePulls": False,
            # Images cannot be pulled again here, so none is ever removed; a full disk is not the kubelet's concern.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        }
    )
