"""`elasticrun`: runs our agent with torchrun's flags and `PET_*` variables."""

from elasticjob_runtime.cli.main import main

__all__ = ["main"]
