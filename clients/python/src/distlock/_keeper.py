"""The thread that does the work of a client.

All steps of all acquisitions, renewals and releases run on this one thread, so they need no locks
among each other. The thread must never wait for the network: it starts calls, and gRPC reports
their ends. It goes on while the program's own threads, or its event loop, are busy.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from google.protobuf.message import Message

from ._deadline import SECOND, now
from ._rpc import Outcome, Rpc
from .errors import ClosedError

T = TypeVar("T")

CLOSED = "the client was closed"

_log = logging.getLogger("distlock")
#: After this time the thread looks at the clock again. A condition does not count the time for
#: which the machine slept.
_LONGEST_SLEEP = SECOND // 4


@dataclass(frozen=True)
class Call:
    """A step of a task: a call, whose outcome the task gets."""

    method: str
    request: Message
    #: The time limit in microseconds.
    within: int


@dataclass(frozen=True)
class Pause:
    """A step of a task: nothing, until this moment."""

    until: int


#: A task is a generator of steps. It gets the outcome of a call, and `None` after a pause.
Steps: TypeAlias = Generator[Call | Pause, Any, T]


class Abandoned(BaseException):
    """Thrown into a task whose result nobody wants any more. The task cleans up, and ends."""


@dataclass(order=True)
class Timer:
    """Something to do at a moment. Those of one moment keep their order."""

    moment: int
    order: int
    #: `None` once it was done or cancelled.
    do: Callable[[], None] | None = field(compare=False)


class Keeper:
    """The thread, its timers, and the tasks on it."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc
        self._due: list[Timer] = []
        self._posted: deque[Callable[[], None]] = deque()
        self._order = itertools.count()
        self._cancelled = 0
        self._changed = threading.Condition()
        self._stopped = False
        self._tasks: set[Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="distlock-keeper", daemon=True)
        self._thread.start()

    def at(self, moment: int, do: Callable[[], None]) -> Timer:
        """Runs `do` on the thread at this moment."""
        timer = Timer(moment, next(self._order), do)
        with self._changed:
            heapq.heappush(self._due, timer)
            if self._due[0] is timer:
                self._changed.notify()
        return timer

    def cancel(self, timer: Timer) -> None:
        """Makes a timer do nothing, if it is not over."""
        with self._changed:
            if timer.do is None:
                return
            timer.do = None
            self._cancelled += 1
            # Most leases are released long before their next renewal. Without this, the timers of
            # all of them would stay until then.
            if self._cancelled > max(64, len(self._due) // 2):
                self._due = [timer for timer in self._due if timer.do is not None]
                heapq.heapify(self._due)
                self._cancelled = 0

    def post(self, do: Callable[[], None]) -> None:
        """Runs `do` on the thread as soon as possible."""
        self.at(0, do)

    def post_without_lock(self, do: Callable[[], None]) -> None:
        """Runs `do` on the thread when it wakes: soon, while it has anything to do later."""
        self._posted.append(do)

    def start(self, steps: Steps[T], unwanted: Callable[[T], None] | None = None) -> Task[T]:
        """Starts a task. `unwanted` gets a result whose future was cancelled."""
        task = Task(self, self._rpc, steps, unwanted)
        with self._changed:
            if self._stopped:
                raise ClosedError(CLOSED)
            self._tasks.add(task)
        self.post(task.begin)
        return task

    def note_end(self, task: Task[Any]) -> None:
        with self._changed:
            self._tasks.discard(task)

    def is_idle(self) -> bool:
        """Whether all tasks have ended."""
        with self._changed:
            return not self._tasks

    def stop(self) -> None:
        """Ends the thread. Tasks that have not ended are dropped."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()
        for task in list(self._tasks):
            task.drop()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._stopped:
                if self._posted:
                    return self._posted.popleft()
                if not self._due:
                    self._changed.wait()
                    continue
                left = self._due[0].moment - now()
                if left > 0:
                    self._changed.wait(min(left, _LONGEST_SLEEP) / SECOND)
                    continue
                timer = heapq.heappop(self._due)
                if timer.do is None:
                    self._cancelled -= 1
                    continue
                do, timer.do = timer.do, None
                return do
        return None

    def _run(self) -> None:
        while (do := self._next()) is not None:
            try:
                do()
            except Exception:
                # One failed step must not end the renewals of all other leases.
                _log.exception("a step of the distlock client failed")


class Task(Generic[T]):
    """A generator of steps that runs on the keeper's thread.

    A result reaches either the caller, by the future, or `unwanted`: a lease must not be lost
    between a grant and a caller that gives up at the same moment.
    """

    def __init__(
        self,
        keeper: Keeper,
        rpc: Rpc,
        steps: Steps[T],
        unwanted: Callable[[T], None] | None,
    ) -> None:
        self.result: Future[T] = Future()
        self._keeper = keeper
        self._rpc = rpc
        self._steps = steps
        self._unwanted = unwanted
        # The step that runs now. The end of an earlier step means nothing.
        self._step = 0
        self._call: Callable[[], object] | None = None
        self._timer: Timer | None = None
        self._ended = False

    def begin(self) -> None:
        self._advance(lambda: next(self._steps))

    def abandon(self) -> None:
        """Has the task clean up and end. Called from any thread, more than once if need be."""
        self._keeper.post(self._abandon)

    def drop(self) -> None:
        """Ends the task without a clean-up, after the keeper's thread has ended."""
        if not self._ended:
            self._fail(ClosedError(CLOSED))

    def _abandon(self) -> None:
        if self._ended:
            return
        if self._call is not None:
            self._call()
        if self._timer is not None:
            self._keeper.cancel(self._timer)
        self._advance(lambda: self._steps.throw(Abandoned()))

    def _advance(self, step: Callable[[], Call | Pause]) -> None:
        self._step += 1
        self._call = self._timer = None
        try:
            self._start(step())
        except StopIteration as ended:
            self._finish()
            if self.result.set_running_or_notify_cancel():
                self.result.set_result(ended.value)
            elif self._unwanted is not None:
                self._unwanted(ended.value)
        except Abandoned:
            # Whoever gives up has cancelled the future before, and the others get this error.
            self._fail(ClosedError(CLOSED))
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._finish()
        if self.result.set_running_or_notify_cancel():
            self.result.set_exception(error)

    def _finish(self) -> None:
        self._ended = True
        self._keeper.note_end(self)

    def _start(self, step: Call | Pause) -> None:
        this = self._step
        if isinstance(step, Pause):
            self._timer = self._keeper.at(step.until, lambda: self._resume(this, None))
            return

        def ended(outcome: Outcome) -> None:
            self._keeper.post(lambda: self._resume(this, outcome))

        self._call = self._rpc.start(step.method, step.request, step.within, ended)

    def _resume(self, step: int, outcome: Outcome | None) -> None:
        if step == self._step and not self._ended:
            self._advance(lambda: self._steps.send(outcome))
