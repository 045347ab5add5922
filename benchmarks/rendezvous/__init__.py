"""Does the rendezvous stay linear? N agents without workers on one real etcd: `python -m benchmarks.rendezvous
--members 4,32,128`.

What is real: etcd; the agent's own RendezvousCore, EtcdClient, PeerServer, probes and `membership.decide`, one of each
per member; one lease, one watch stream and one connection for calls per member. What is not: workers, and heartbeats
between neighbours (a constant cost per agent, which here would all fall on one machine). Members are packed into a few
processes (crowd.py), each with a small pool of threads that runs whichever member has something to do; a member is
never run by two threads at once. Leases last 60 s instead of 5, since the renewals of a thousand agents would also fall
on these few processes (each is one message without a write). The first member has a process of its own, as the planner
of a real job has, and as many descriptors as `--nofile` says: 1024 is what many container runtimes give.

All of it, etcd included, shares the machine's cores, so the times are an upper bound: the table says how much CPU each
side took.
"""
