"""Whether the cost of a rendezvous is linear in its members: `python -m benchmarks.rendezvous --members 4,32,128`.

Runs N agents without worker processes on one real etcd. Each member has the agent's own RendezvousCore, EtcdClient,
PeerServer, probes and `membership.decide`, with one lease, one watch stream and one connection for calls. Left out are
worker processes, and heartbeats between neighbours: a constant cost per agent, but here all of it on one machine.

Members share a few processes (crowd.py), each with a small pool of threads that runs the members that have work; two
threads never run the same member at once. Leases last 180 s instead of 5, and so long is a watch silent before it is
probed: the renewals and probes of thousands of agents at rest (a message each, without a write) would also fall on
these few processes. The first member has a process of its own, as the planner of a real job has, with as many file
descriptors as `--nofile` allows; many container runtimes allow 1024.

Everything, etcd included, shares the machine's cores, so the times are upper bounds; the table shows the CPU time of
each side.
"""
