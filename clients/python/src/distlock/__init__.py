"""Locks of a distlock server.

    import distlock

    with distlock.Client("distlock://127.0.0.1:7420") as client:
        with client.acquire("nightly") as lease:
            store(result, fence=lease.token)

A lock is held for a short time (its TTL), and renewed in the background while the program runs.
`lease.is_valid()` and `lease.check()` tell without a question to the server whether the lock is
certainly still held. Show `lease.token` to the resource that the lock protects, and let the
resource refuse a token that is lower than one that it has seen.

`distlock.aio` is the same for asyncio.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import TracebackType

from ._engine import Engine
from ._handle import LeaseView, forced, wanted
from ._lease import LeaseState
from ._rpc import lock_state
from ._types import Holder, LockState, LossReason, Released
from .errors import (
    AccessDeniedError,
    ClosedError,
    CorruptError,
    DistlockError,
    InternalError,
    InvalidArgumentError,
    InvalidConfigError,
    InvalidNameError,
    LimitExceededError,
    LostError,
    NotHeldError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedError,
    WaitTimeoutError,
)

__all__ = [
    "AccessDeniedError",
    "Client",
    "ClosedError",
    "CorruptError",
    "DistlockError",
    "Holder",
    "InternalError",
    "InvalidArgumentError",
    "InvalidConfigError",
    "InvalidNameError",
    "Lease",
    "LimitExceededError",
    "LockState",
    "LossReason",
    "LostError",
    "NotHeldError",
    "OutcomeUnknownError",
    "Released",
    "UnavailableError",
    "UnsupportedError",
    "WaitTimeoutError",
]


class Client:
    """A client of the servers of one store: `distlock://HOST`, or several with commas between.

    All threads of a program can share a client. A process that was forked needs its own.

    The options of a URL are those of the tool: `distlocks://HOST?tls_ca=PATH&token_file=PATH`, or
    `distlock://localhost?socket=PATH`. A request without an answer counts as lost after
    `request_timeout` (3s). `label` is the name of this client for people.
    """

    def __init__(self, url: str, *, label: str | None = None) -> None:
        self._engine = Engine(url, label)

    def acquire(
        self,
        name: str,
        *,
        ttl: float = 10.0,
        timeout: float | None = 30.0,
        meta: str | None = None,
        on_loss: Callable[[Lease, LossReason], object] | None = None,
    ) -> Lease:
        """Takes a lock, and waits for it for `timeout` seconds at most; `None`: without a limit.

        The lease lasts for `ttl` seconds, and is renewed until its release. `on_loss` is called on
        a thread of its own when the lock is lost. `meta` is a text that others see beside the lock.

        Raises `WaitTimeoutError`, which names the holder, and `UnavailableError` if the server
        could not be reached in that time. After an error the lock is not held.
        """
        task = self._engine.acquire(wanted(name, ttl, timeout, meta))
        try:
            state = task.result.result()
        except BaseException:
            # Also Control-C.
            self._engine.abandon(task)
            raise
        return Lease(self._engine, state, on_loss)

    def try_acquire(
        self,
        name: str,
        *,
        ttl: float = 10.0,
        meta: str | None = None,
        on_loss: Callable[[Lease, LossReason], object] | None = None,
    ) -> Lease | None:
        """Takes a lock if it is free. `None`: somebody else holds it."""
        try:
            return self.acquire(name, ttl=ttl, timeout=0, meta=meta, on_loss=on_loss)
        except WaitTimeoutError:
            return None

    def inspect(self, name: str) -> LockState:
        """Asks for the state of a lock."""
        return lock_state(self._engine.inspect(name).result())

    def force_release(self, name: str, token: int) -> bool:
        """Frees a lock that somebody else holds with this token. `False`: it is not held.

        Raises `NotHeldError` if the lock has another token by now. The holder learns of it at its
        next renewal, so the holder may go on until then: the next token is higher.
        """
        return forced(self._engine.force_release(name, token).result())

    def close(self) -> None:
        """Gives the held locks back, and ends the connections."""
        self._engine.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Lease(LeaseView):
    """A held lock. Use it with `with`, or call `release`."""

    def __init__(
        self,
        engine: Engine,
        state: LeaseState,
        on_loss: Callable[[Lease, LossReason], object] | None,
    ) -> None:
        super().__init__(engine, state)
        if on_loss is None:
            return
        # The keeper must not keep a lease alive that its holder has dropped.
        this = weakref.ref(self)

        def tell(reason: LossReason) -> None:
            lease = this()
            if lease is not None:
                # The callback of a program may take its time, and the keeper must not wait.
                what, about = "distlock-loss", (lease, reason)
                threading.Thread(target=on_loss, args=about, name=what, daemon=True).start()

        state.on_loss(tell)

    def wait_lost(self, timeout: float | None = None) -> LossReason | None:
        """Waits until the lock is lost. `None`: the time is over, or the lock was released."""
        self._state.ended.wait(timeout)
        return self.loss

    def release(self) -> Released:
        """Ends the lock."""
        return self._release().result()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases. Raises `LostError` if the lock was lost in a block that ended well."""
        self._leave(self.release(), error)
