"""What the blocking client and that of asyncio have in common."""

from __future__ import annotations

import warnings
from concurrent.futures import Future

from google.protobuf.message import Message

from ._deadline import SECOND
from ._engine import Engine, Wanted, micros
from ._lease import LeaseState
from ._types import LossReason, Released
from .errors import InternalError, LostError, NotHeldError
from .lock.v1 import lock_pb2 as wire


def wanted(name: str, ttl: float, timeout: float | None, meta: str | None) -> Wanted:
    """The lock that a caller asks for."""
    wait = micros("timeout", timeout) if timeout else timeout
    return Wanted(name, micros("ttl", ttl), None if wait is None else int(wait), meta)


def forced(answer: Message) -> bool:
    """Whether a force-release freed the lock."""
    if not isinstance(answer, wire.ForceReleaseAnswer):
        raise InternalError("the answer belongs to another call")
    if answer.HasField("other_token"):
        raise NotHeldError(f"the lock is held with token {answer.other_token}: nothing changed")
    return answer.released


class LeaseView:
    """The part of a lease that waits for nothing."""

    def __init__(self, engine: Engine, state: LeaseState) -> None:
        self._engine = engine
        self._state = state

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._state.name

    @property
    def token(self) -> int:
        """The fencing token: higher than that of every earlier holder."""
        return self._state.token

    @property
    def epoch(self) -> str:
        """The history of the store that the token belongs to."""
        return self._state.epoch

    @property
    def loss(self) -> LossReason | None:
        """The reason, if the lock is lost by now."""
        return self._state.loss()

    def is_valid(self) -> bool:
        """Whether the lock is certainly held. Once `False`, it stays `False`."""
        return self._state.is_valid()

    def remaining(self) -> float:
        """The seconds until the local deadline, if no renewal succeeds; 0 after the end."""
        return self._state.remaining() / SECOND

    def check(self) -> None:
        """Raises `LostError` if the lock was lost, and `NotHeldError` after a release."""
        self._state.check()

    def _release(self) -> Future[Released]:
        return self._engine.release(self._state)

    def _leave(self, released: Released, error: BaseException | None) -> None:
        # An error of the block says more than the loss that may have caused it.
        reason = self._state.loss()
        if error is None and reason is not None:
            raise LostError(f"{self.name!r}: the lock was lost: {reason.value}")
        if error is None and released is Released.ALREADY_LOST:
            raise LostError(f"{self.name!r}: the lock was lost before its release")

    def __repr__(self) -> str:
        held = f"token {self.token}" if self.is_valid() else "not held"
        return f"<{type(self).__name__} {self.name!r}: {held}>"

    def __del__(self) -> None:
        state = getattr(self, "_state", None)
        if state is None or state.ended.is_set():
            return
        # Nobody can release it any more, and its renewals would go on for ever.
        warnings.warn(f"the lock {state.name!r} was not released", ResourceWarning, source=self)
        self._engine.drop(state)
