"""Data for elastic training: every sample once per epoch, however often the world changes its size in the middle of it.

    sampler = ElasticDistributedSampler(dataset)
    for epoch in range(sampler.epoch, epochs):
        sampler.set_epoch(epoch)
        for indices in sampler.batches(64):     # this rank's share of a global batch of 64
            train(dataset, indices)
            sampler.advance(64)

For training scripts. Standard library only; works with and without torch's DataLoader.
"""

from elasticjob_runtime.data.sampler import ElasticDistributedSampler

__all__ = ["ElasticDistributedSampler"]
