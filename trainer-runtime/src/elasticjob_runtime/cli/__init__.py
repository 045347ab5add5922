"""`elasticrun`: torchrun's flags and `PET_*` variables, our agent."""

from elasticjob_runtime.cli.main import main

__all__ = ["main"]
