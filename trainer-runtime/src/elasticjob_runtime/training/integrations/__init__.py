"""Adapters for frameworks. Each module imports its framework, so import only yours:

from elasticjob_runtime.training.integrations.transformers import ElasticCallback    # Hugging Face Trainer
from elasticjob_runtime.training.integrations.trainer import ElasticTrainer          # Hugging Face Trainer, in place
from elasticjob_runtime.training.integrations.lightning import ElasticCallback       # Lightning
from elasticjob_runtime.training.integrations.accelerate import ElasticAccelerator   # Accelerate
"""
