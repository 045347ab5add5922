"""`elasticrun`: runs our agent with torchrun's flags and `PET_*` variables."""

import os

from elasticjob_runtime.sigterm import end_on_sigterm

end_on_sigterm(os.getpid())  # before everything else is imported

from elasticjob_runtime.cli.main import main  # noqa: E402

__all__ = ["main"]
