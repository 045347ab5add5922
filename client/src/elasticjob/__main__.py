"""`elasticjob` and `kubectl elasticjob`."""

from __future__ import annotations

import sys


def main() -> None:
    from elasticjob.cli.app import run  # here, so that importing this module stays cheap

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
