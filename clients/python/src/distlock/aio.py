"""The client for asyncio.

    from distlock import aio

    async with aio.Client("distlock://127.0.0.1:7420") as client:
        async with client.acquire("nightly") as lease:
            await store(result, fence=lease.token)

Renewals run on a thread of their own: a lock stays held while the event loop is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from ._engine import Engine, Wanted
from ._handle import LeaseView, forced, wanted
from ._lease import LeaseState
from ._rpc import lock_state
from ._types import LockState, LossReason, Released
from .errors import WaitTimeoutError

__all__ = ["Client", "Lease"]

T = TypeVar("T")


class Client:
    """A client of the servers of one store. Its options are those of `distlock.Client`.

    A client belongs to no event loop.
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
    ) -> Acquisition:
        """Takes a lock, as `distlock.Client.acquire`: with `await`, or with `async with`.

        `on_loss` is called on the event loop. After a cancellation the lock is not held: what is
        still granted is released.
        """
        return Acquisition(self._engine, wanted(name, ttl, timeout, meta), on_loss)

    async def try_acquire(
        self,
        name: str,
        *,
        ttl: float = 10.0,
        meta: str | None = None,
        on_loss: Callable[[Lease, LossReason], object] | None = None,
    ) -> Lease | None:
        """Takes a lock if it is free. `None`: somebody else holds it."""
        try:
            return await self.acquire(name, ttl=ttl, timeout=0, meta=meta, on_loss=on_loss)
        except WaitTimeoutError:
            return None

    async def inspect(self, name: str) -> LockState:
        """Asks for the state of a lock."""
        return lock_state(await asyncio.wrap_future(self._engine.inspect(name)))

    async def force_release(self, name: str, token: int) -> bool:
        """Frees a lock by hand, as `distlock.Client.force_release`."""
        return forced(await asyncio.wrap_future(self._engine.force_release(name, token)))

    async def close(self) -> None:
        """Gives the held locks back, and ends the connections."""
        await asyncio.to_thread(self._engine.close)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Acquisition:
    """A lock that is asked for. It starts with `await` or `async with`, and can be used once."""

    def __init__(
        self,
        engine: Engine,
        what: Wanted,
        on_loss: Callable[[Lease, LossReason], object] | None,
    ) -> None:
        self._engine = engine
        self._wanted = what
        self._on_loss = on_loss
        self._lease: Lease | None = None

    def __await__(self) -> Generator[Any, None, Lease]:
        return self._acquire().__await__()

    async def _acquire(self) -> Lease:
        task = self._engine.acquire(self._wanted)
        try:
            state = await asyncio.wrap_future(task.result)
        except BaseException:
            self._engine.abandon(task)
            raise
        return Lease(self._engine, state, self._on_loss)

    async def __aenter__(self) -> Lease:
        self._lease = await self._acquire()
        return self._lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lease is not None:
            await self._lease.__aexit__(kind, error, trace)


class Lease(LeaseView):
    """A held lock. Use it with `async with`, or call `release`."""

    def __init__(
        self,
        engine: Engine,
        state: LeaseState,
        on_loss: Callable[[Lease, LossReason], object] | None,
    ) -> None:
        super().__init__(engine, state)
        if on_loss is None:
            return
        loop, this, call = asyncio.get_running_loop(), weakref.ref(self), on_loss

        def tell(reason: LossReason) -> None:
            lease = this()
            if lease is not None:
                # A loop that was closed has nobody who could be told.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(call, lease, reason)

        state.on_loss(tell)

    async def lost(self) -> LossReason:
        """Ends when the lock is lost. It does not end for a lock that is released."""
        loop = asyncio.get_running_loop()
        reason: asyncio.Future[LossReason] = loop.create_future()

        def tell(lost: LossReason) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, lost)

        def settle(lost: LossReason) -> None:
            if not reason.done():
                reason.set_result(lost)

        self._state.on_loss(tell)
        return await reason

    async def release(self) -> Released:
        """Ends the lock. After a cancellation the release goes on."""
        return await keep(self._release())

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases. Raises `LostError` if the lock was lost in a block that ended well."""
        self._leave(await self.release(), error)


async def keep(result: Future[T]) -> T:
    """Waits for a result. A cancellation of the caller does not reach it."""
    return await asyncio.shield(asyncio.wrap_future(result))
