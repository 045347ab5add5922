"""Data for elastic training: each sample once per epoch, even if the number of workers changes in the middle of it.

    sampler = ElasticDistributedSampler(dataset)
    for epoch in range(sampler.epoch, epochs):
        sampler.set_epoch(epoch)
        for indices in sampler.batches(64):     # this rank's share of a global batch of 64
            train(dataset, indices)
            sampler.advance()

With torch's DataLoader, see `ElasticDistributedSampler`.

For training scripts. Standard library only; works with or without torch's DataLoader.
"""

from elasticjob_runtime.data.sampler import ElasticDistributedSampler

__all__ = ["ElasticDistributedSampler"]
