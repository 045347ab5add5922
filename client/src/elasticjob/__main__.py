"""`elasticjob` and `kubectl elasticjob`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    from elasticjob.cli.app import run  # here, so that importing this module stays cheap

    plugin = os.path.basename(sys.argv[0]).startswith("kubectl-")
    sys.exit(run(sys.argv[1:], "kubectl elasticjob" if plugin else "elasticjob"))


if __name__ == "__main__":
    main()
