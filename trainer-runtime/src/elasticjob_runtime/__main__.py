"""`python -m elasticjob_runtime` is `elasticrun`."""

from elasticjob_runtime.cli import main

raise SystemExit(main())
