"""The operator's entry point: `elasticjob-operator`, or `python -m elasticjob_operator`.

Settings come from the environment: see settings.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys

import kopf
from kubernetes.aio.config import ConfigException

from elasticjob_operator.app import App
from elasticjob_operator.garbage import in_short_pauses
from elasticjob_operator.settings import LogFormat, Settings, SettingsError


def main() -> None:
    try:
        settings = Settings.from_environment(os.environ)
        _log_to_stderr(json=settings.log_format is LogFormat.JSON)
        _raise_file_limit()
        with in_short_pauses():
            code = asyncio.run(App(settings).run())
    except SettingsError as error:
        sys.exit(f"elasticjob-operator: {error}")
    except ConfigException as error:
        sys.exit(f"elasticjob-operator: no service account and no kubeconfig found: {error}")
    logging.shutdown()
    # A call to an unresponsive etcd may hold a thread for seconds more, and Python would wait for it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _log_to_stderr(*, json: bool) -> None:
    # In plain text the job's name precedes the message; in JSON it is a separate field.
    kopf.configure(log_format=kopf.LogFormat.JSON if json else kopf.LogFormat.FULL, log_prefix=None)
    for chatty in ("kopf.objects", "kopf.activities"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _raise_file_limit() -> None:
    """Each job with its own etcd needs a socket, and the soft limit of many container runtimes is 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
