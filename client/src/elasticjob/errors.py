"""What can go wrong, as one sentence for people, a command that fixes it, and an exit code for scripts."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """Exit codes of every command, documented with the command line."""

    OK = 0
    ERROR = 1
    USAGE = 2
    UNREACHABLE = 3
    FORBIDDEN = 4
    NOT_FOUND = 5
    JOB_FAILED = 6
    TIMEOUT = 7
    DELETED = 8
    INCOMPLETE = 9
    INTERRUPTED = 130


class ElasticJobError(Exception):
    """`remedy`: what to do, often a command; empty if there is nothing to add."""

    code = Exit.ERROR

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n{self.remedy}" if self.remedy else self.message


class UsageError(ElasticJobError):
    """Flags or arguments that do not fit together."""

    code = Exit.USAGE


class InvalidManifestError(ElasticJobError):
    """A manifest or a job that the API server would reject, or has rejected."""


class AlreadyExistsError(ElasticJobError):
    """A job of this name exists, or a file that would be overwritten."""


class UnreachableError(ElasticJobError):
    """No kubeconfig, no API server, or no ElasticJobs on it."""

    code = Exit.UNREACHABLE


class NotInstalledError(UnreachableError):
    """The cluster has no CRD for ElasticJobs."""


class ForbiddenError(ElasticJobError):
    """The user lacks a right, which the message names."""

    code = Exit.FORBIDDEN


class NotFoundError(ElasticJobError):
    """No job, pod or namespace of this name."""

    code = Exit.NOT_FOUND


class JobFailedError(ElasticJobError):
    """The job that was waited for has failed."""

    code = Exit.JOB_FAILED


class WaitTimeoutError(ElasticJobError, TimeoutError):
    """The job has not reached the awaited state in time."""

    code = Exit.TIMEOUT


class JobDeletedError(ElasticJobError):
    """The job was deleted while it was waited for or watched."""

    code = Exit.DELETED
