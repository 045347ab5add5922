"""Callbacks for frameworks that own the training loop. Each module imports its framework, so import only yours:

from elasticjob_runtime.training.integrations.transformers import ElasticCallback    # Hugging Face Trainer
from elasticjob_runtime.training.integrations.lightning import ElasticCallback       # Lightning
"""
