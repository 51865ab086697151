"""The errors, one class for each kind of the protocol."""

from __future__ import annotations

from ._types import Holder


class DistlockError(Exception):
    """The base of all errors of this package."""

    #: The kind, as the protocol names it.
    kind = "internal"
    #: Whether the same call may succeed later without a change by hand.
    retryable = False

    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        retry_in: float | None = None,
        holder: Holder | None = None,
    ) -> None:
        super().__init__(message)
        if retryable is not None:
            self.retryable = retryable
        #: The pause in seconds that the server suggests before the next attempt.
        self.retry_in = retry_in
        #: Who kept the lock busy, if that is known.
        self.holder = holder


class AccessDeniedError(DistlockError):
    """The server refused the token, or the token does not allow the operation."""

    kind = "access_denied"


class ClosedError(DistlockError):
    """The client was closed, or was opened before a fork of this process."""

    kind = "closed"


class CorruptError(DistlockError):
    """The store holds a value that cannot be read."""

    kind = "corrupt"


class InternalError(DistlockError):
    """A bug in distlock."""

    kind = "internal"


class InvalidArgumentError(DistlockError, ValueError):
    """An argument is out of its range."""

    kind = "invalid_argument"


class InvalidConfigError(DistlockError, ValueError):
    """A URL or an option is wrong."""

    kind = "invalid_config"


class InvalidNameError(DistlockError, ValueError):
    """The name of a lock breaks a rule."""

    kind = "invalid_name"


class LimitExceededError(DistlockError):
    """A limit of the server or of its store is reached."""

    kind = "limit_exceeded"


class LostError(DistlockError):
    """The lock was lost."""

    kind = "lost"


class NotHeldError(DistlockError):
    """The caller does not hold the lock."""

    kind = "not_held"


class OutcomeUnknownError(DistlockError):
    """The operation may or may not have happened, because its answer was lost."""

    kind = "outcome_unknown"
    retryable = True


class WaitTimeoutError(DistlockError, TimeoutError):
    """The lock did not become free within the wait."""

    kind = "timeout"
    retryable = True


class UnavailableError(DistlockError, ConnectionError):
    """The server cannot be reached or cannot serve now. The caller does not hold the lock."""

    kind = "unavailable"
    retryable = True


class UnsupportedError(DistlockError):
    """The server or its store cannot do this at all."""

    kind = "unsupported"
