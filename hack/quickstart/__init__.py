"""`make quickstart`: elastic training on this machine alone: agents, an etcd in this process, one worker killed, one
agent joining."""
