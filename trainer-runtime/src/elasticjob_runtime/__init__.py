"""The ElasticJob runtime: an elastic launcher, agent and rendezvous for PyTorch, standard library only."""
