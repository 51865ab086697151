"""What a client does: acquisitions, renewals and releases, each as a task of the keeper.

The five rules of every client of the lock server stand here:

1. A lease is counted from the moment before the request was sent, never from the answer.
2. A holder stops before the end of its lease, by the margin.
3. A call without an answer may have happened. It is released, and repeated with another owner.
4. Whoever gives up an acquisition releases: what was granted is not known.
5. A renewal shows the newest proof of the lease.
"""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import socket
import uuid
from concurrent.futures import Future
from dataclasses import dataclass

from google.protobuf.message import Message

from . import _address
from ._deadline import SECOND, now
from ._keeper import CLOSED, Call, Keeper, Pause, Steps, Task, Timer
from ._lease import LeaseState
from ._rpc import Outcome, Rpc, holder, loss_reason
from ._types import Released
from .errors import (
    ClosedError,
    DistlockError,
    InternalError,
    InvalidArgumentError,
    InvalidConfigError,
    OutcomeUnknownError,
    UnavailableError,
    WaitTimeoutError,
)
from .lock.v1 import lock_pb2 as wire

#: The longest wait of one call at the server.
_LONGEST_WAIT = 600 * SECOND
#: The time in which a closed client gives its locks back.
_CLOSING = 2 * SECOND


@dataclass(frozen=True)
class Wanted:
    """A lock that a caller asks for."""

    name: str
    ttl: int
    #: How long the caller waits; `None`: without a limit.
    wait: int | None
    meta: str | None


@dataclass
class _Kept:
    """What the keeper does for one lease."""

    renewal: Task[None]
    #: The look at the deadline, which comes also when a renewal hangs.
    deadline: Timer | None = None


class Engine:
    """A client without the form in which a program waits."""

    def __init__(self, url: str, label: str | None) -> None:
        address = _address.parse(url)
        self._limit = micros("request_timeout", address.request_timeout)
        self._label = own_label() if label is None else label
        self._has_several_servers = len(address.targets) > 1
        self._rpc = Rpc(address)
        self._keeper = Keeper(self._rpc)
        self._process = os.getpid()
        self._closed = False
        self._kept: dict[LeaseState, _Kept] = {}
        self._acquiring: set[Task[LeaseState]] = set()

    def acquire(self, wanted: Wanted) -> Task[LeaseState]:
        """Takes a lock. A caller that gives up calls `abandon`."""
        self.check_open()
        task = self._keeper.start(self._acquire(wanted), self.give_back)
        self._acquiring.add(task)
        task.result.add_done_callback(lambda _: self._acquiring.discard(task))
        return task

    def abandon(self, task: Task[LeaseState]) -> None:
        """Ends an acquisition whose caller has gone. What it is granted is released."""

        def released(result: Future[LeaseState]) -> None:
            if not result.cancelled() and result.exception() is None:
                self.give_back(result.result())

        if not task.result.cancel():
            task.result.add_done_callback(released)
        task.abandon()

    def give_back(self, state: LeaseState) -> None:
        """Releases a lease whose caller has gone. Called from any thread."""
        # After the end of the keeper the lease ends by itself.
        with contextlib.suppress(ClosedError):
            self.release(state)

    def drop(self, state: LeaseState) -> None:
        """Releases a lease that was garbage-collected.

        The garbage collector may run while its thread has any lock of this package, so this takes
        none.
        """
        self._keeper.post_without_lock(lambda: self.give_back(state))

    def release(self, state: LeaseState) -> Future[Released]:
        """Ends a lease."""
        self._check_process()
        result: Future[Released] = Future()
        if state.release():
            # In this order the lease is not renewed any more when its release begins.
            self._keeper.post(lambda: self._stop_keeping(state))
            self._keeper.start(self._release(state, result))
        else:
            result.set_result(Released.ALREADY_LOST if state.loss() else Released.CLEAN)
        return result

    def inspect(self, name: str) -> Future[Message]:
        """Asks for the state of a lock."""
        return self._ask("Inspect", wire.InspectLock(name=name))

    def force_release(self, name: str, token: int) -> Future[Message]:
        """Frees a lock whose token is this one."""
        return self._ask("ForceRelease", wire.ForceReleaseLock(name=name, token=token))

    def _ask(self, method: str, request: Message) -> Future[Message]:
        """Makes one call, without a repetition."""
        self.check_open()

        def steps() -> Steps[Message]:
            outcome: Outcome = yield Call(method, request, self._limit)
            if isinstance(outcome, DistlockError):
                raise outcome
            return outcome

        return self._keeper.start(steps()).result

    def close(self) -> None:
        """Gives all locks back, and ends the thread. The second time this does nothing."""
        if self._closed:
            return
        self.check_open()
        self._closed = True
        done: Future[None] = Future()
        self._keeper.post(lambda: self._wind_down(done, now() + _CLOSING))
        done.result()
        self._keeper.stop()
        self._rpc.close()

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError(CLOSED)
        self._check_process()

    def _check_process(self) -> None:
        # The keeper's thread is in the process that opened the client, and in no other.
        if self._process != os.getpid():
            raise ClosedError("a client cannot be used after a fork: open one in the new process")

    # Everything below runs on the keeper's thread.

    def _wind_down(self, done: Future[None], until: int) -> None:
        for task in list(self._acquiring):
            task.abandon()
        for state in list(self._kept):
            self.release(state)
        if self._keeper.is_idle() or now() >= until:
            done.set_result(None)
        else:
            self._keeper.at(now() + SECOND // 200, lambda: self._wind_down(done, until))

    def _acquire(self, wanted: Wanted) -> Steps[LeaseState]:
        until = None if wanted.wait is None else now() + wanted.wait
        failures = 0
        # The owner of a call that may have been granted, or may still be.
        doubtful: bytes | None = None
        try:
            while True:
                error = None
                if doubtful is not None:
                    # Otherwise the next call would wait for what the last one was granted.
                    release = freeing(wanted, doubtful)
                    outcome: Outcome = yield Call("Release", release, self._limit)
                    if isinstance(outcome, DistlockError) and outcome.retryable:
                        error = outcome
                    else:
                        # What the server does not let this client release ends with its lease.
                        doubtful = None
                if error is None:
                    left = _LONGEST_WAIT if until is None else max(until - now(), 0)
                    # A wait of a hundred leases costs a tenth of one as its part of the margin.
                    wait = min(left, _LONGEST_WAIT, 100 * wanted.ttl)
                    # Each call has another owner: the server releases what it granted to a call
                    # that has ended, and may do so after it has served the repetition.
                    owner = doubtful = uuid.uuid4().bytes
                    request = wire.AcquireCall(request=asking(wanted, owner, self._label))
                    request.wait_us = wait
                    sent = now()
                    outcome = yield Call("Acquire", request, wait + self._limit)
                    if isinstance(outcome, DistlockError):
                        error = outcome
                        if not isinstance(error, (OutcomeUnknownError, InternalError)):
                            doubtful = None
                    elif isinstance(outcome, wire.AcquireAnswer) and outcome.HasField("granted"):
                        if outcome.granted.proof and self._has_several_servers:
                            # Each of them would grant what the other one has granted.
                            raise InvalidConfigError(
                                "the server keeps its locks in its own memory, so no other server "
                                "has them: name it alone"
                            )
                        state = LeaseState(wanted.name, owner, wanted.ttl, outcome.granted, sent)
                        if state.is_valid():
                            doubtful = None
                            self._keep(state)
                            return state
                        error = UnavailableError("the answer took longer than the lease lasts")
                    else:
                        doubtful, failures = None, 0
                        if until is not None and now() >= until:
                            raise busy(wanted, outcome)
                        yield Pause(max(now(), sent + backoff(1)))
                        continue
                failures += 1
                if not error.retryable:
                    raise error
                # After one lost answer there is one more attempt, also after the end of the wait.
                if until is not None and now() >= until and (failures > 1 or doubtful is None):
                    raise unreachable(wanted, error)
                pause = backoff(failures)
                if error.retry_in is not None:
                    pause = round(error.retry_in * SECOND)
                resume = now() + pause
                yield Pause(resume if until is None else min(resume, max(until, now())))
        finally:
            if doubtful is not None:
                self._undo(wanted, doubtful)

    def _keep(self, state: LeaseState) -> None:
        """Renews a lease, and watches its deadline, until it ends."""
        self._kept[state] = _Kept(self._keeper.start(self._renew(state)))
        self._watch(state)

    def _watch(self, state: LeaseState) -> None:
        kept = self._kept.get(state)
        if kept is None:
            return
        if state.is_valid():
            kept.deadline = self._keeper.at(state.deadline, lambda: self._watch(state))
        else:
            self._stop_keeping(state)

    def _stop_keeping(self, state: LeaseState) -> None:
        kept = self._kept.pop(state, None)
        if kept is not None:
            kept.renewal.abandon()
            if kept.deadline is not None:
                self._keeper.cancel(kept.deadline)

    def _renew(self, state: LeaseState) -> Steps[None]:
        failures = 0
        while True:
            yield Pause(state.renew_at)
            sent = now()
            if not state.is_valid():
                self._stop_keeping(state)
                return
            state.note_sending(sent)
            request = wire.RenewLease(lease=state.lease(), ttl_us=state.ttl, proof=state.proof)
            limit = min(max(state.ttl // 3, SECOND // 20), self._limit, state.deadline - sent)
            outcome = yield Call("Renew", request, limit)
            if not isinstance(outcome, wire.RenewAnswer):
                failures += 1
                state.note_failure(now() + min(backoff(failures), state.ttl // 10))
            elif outcome.HasField("extended"):
                failures = 0
                state.extend(sent, outcome.extended)
            else:
                state.lose(loss_reason(outcome.not_held))
            if not state.is_valid():
                self._stop_keeping(state)
                return

    def _release(self, state: LeaseState, result: Future[Released]) -> Steps[None]:
        """Releases until the server confirms it, or the lease has ended there."""
        failures, begun = 0, now()
        request = wire.ReleaseLease(lease=state.lease())
        while True:
            outcome = yield Call("Release", request, self._limit)
            if isinstance(outcome, wire.ReleaseAnswer):
                # After a lost answer, "not held" is the work of the first request.
                clean = outcome.released or failures > 0
                tell(result, Released.CLEAN if clean else Released.ALREADY_LOST)
                return
            failures += 1
            if now() >= min(state.latest, begun + self._limit):
                tell(result, Released.UNCONFIRMED)
            if now() >= state.latest:
                return
            yield Pause(now() + backoff(failures))

    def _undo(self, wanted: Wanted, owner: bytes) -> None:
        """Releases what an acquisition may have been granted."""

        def steps() -> Steps[None]:
            failures, until = 0, now() + wanted.ttl
            while now() < until:
                outcome = yield Call("Release", freeing(wanted, owner), self._limit)
                if isinstance(outcome, wire.ReleaseAnswer):
                    return
                failures += 1
                yield Pause(now() + backoff(failures))

        self._keeper.start(steps())


def asking(wanted: Wanted, owner: bytes, label: str) -> wire.AcquireLock:
    """The request for a lock."""
    return wire.AcquireLock(
        name=wanted.name, owner=owner, ttl_us=wanted.ttl, holder=label, meta=wanted.meta
    )


def freeing(wanted: Wanted, owner: bytes) -> wire.ReleaseLease:
    """The request that releases a lock whose token is not known."""
    return wire.ReleaseLease(lease=wire.Lease(name=wanted.name, owner=owner))


def busy(wanted: Wanted, answer: Message) -> WaitTimeoutError:
    """The error of a wait that ended while somebody else held the lock."""
    told = answer.busy if isinstance(answer, wire.AcquireAnswer) else wire.Busy()
    by = holder(told.holder) if told.HasField("holder") else None
    who = f", held by {by.holder}" if by else ""
    waited = f" after {wanted.wait / SECOND:g} s" if wanted.wait else ""
    return WaitTimeoutError(f"{wanted.name!r} is busy{waited}{who}", holder=by)


def unreachable(wanted: Wanted, error: DistlockError) -> DistlockError:
    """The error of an acquisition that ended in an outage. The caller holds nothing."""
    if isinstance(error, OutcomeUnknownError):
        return UnavailableError(f"{wanted.name!r}: {error}")
    return error


def backoff(failures: int) -> int:
    """The pause after so many failures in a row: from 20 ms to half a second."""
    return min(20_000 << min(failures - 1, 5), SECOND // 2)


def tell(result: Future[Released], value: Released) -> None:
    """Sets a result, unless it is set or its caller has gone."""
    if not result.done() and result.set_running_or_notify_cancel():
        result.set_result(value)


def micros(what: str, seconds: float) -> int:
    """The microseconds of a duration."""
    if not 0 < seconds < math.inf:
        raise InvalidArgumentError(f"{what} of {seconds!r} s is no duration")
    return round(seconds * SECOND)


def own_label() -> str:
    """Who this process is, for people: user@host:pid."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    shown = "".join(filter(str.isprintable, f"{user[:30]}@{socket.gethostname()[:40]}"))
    while len(shown.encode()) > 110:
        shown = shown[:-1]
    return f"{shown}:{os.getpid()}"
