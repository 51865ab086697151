"""The state of one lease, which its holder and the keeper share.

A lease that was lost or released never becomes held again, and each check itself notices that the
deadline has passed: otherwise a renewal whose answer comes late could make a lease valid again
after its holder was told that it is not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from . import _deadline
from ._deadline import now
from ._types import LossReason
from .errors import LostError, NotHeldError
from .lock.v1 import lock_pb2 as wire

_log = logging.getLogger("distlock")


class LeaseState:
    """One lease: held, lost or released; its deadline, its token and its proof."""

    def __init__(self, name: str, owner: bytes, ttl: int, grant: wire.Grant, sent: int) -> None:
        self.name = name
        self.owner = grant.owner if grant.HasField("owner") else owner
        self.ttl = ttl
        self.token = grant.token
        self.epoch = grant.epoch
        self.proof = grant.proof
        #: The server has ended the lease by then, whatever was lost on the way.
        self.latest = sent + grant.valid_for_us
        self.renew_at = 0
        self._deadline = _deadline.deadline(sent, grant.valid_for_us, ttl)
        self._reason: LossReason | None = None
        self._released = False
        # Whether the last renewal has no good answer, or none yet.
        self._failing = False
        self._mutex = threading.Lock()
        #: Set when the lease is lost or released.
        self.ended = threading.Event()
        self._on_loss: list[Callable[[LossReason], None]] = []
        self.plan_renewal()

    def plan_renewal(self) -> None:
        self.renew_at = _deadline.next_renewal(now(), self._deadline)

    @property
    def deadline(self) -> int:
        return self._deadline

    def lease(self) -> wire.Lease:
        """The lease, as the messages name it."""
        return wire.Lease(name=self.name, owner=self.owner, token=self.token)

    def loss(self) -> LossReason | None:
        """The reason if the lease is lost by now."""
        with self._mutex:
            if self._released or self._reason is not None or now() < self._deadline:
                return self._reason
            reason = LossReason.UNREACHABLE if self._failing else LossReason.EXPIRED
            listeners = self._lose(reason)
        self._tell(listeners, reason)
        return reason

    def lose(self, reason: LossReason) -> None:
        """Ends a held lease, because the server says that it is not held any more."""
        if self.loss() is not None:
            return
        with self._mutex:
            if self._released or self._reason is not None:
                return
            listeners = self._lose(reason)
        self._tell(listeners, reason)

    def _lose(self, reason: LossReason) -> list[Callable[[LossReason], None]]:
        self._reason = reason
        self.ended.set()
        listeners, self._on_loss = self._on_loss, []
        return listeners

    def _tell(self, listeners: list[Callable[[LossReason], None]], reason: LossReason) -> None:
        for listener in listeners:
            listener(reason)
        # The log may be slow, and the holder should stop at once.
        _log.warning("lock %r lost: %s", self.name, reason.value)

    def on_loss(self, listener: Callable[[LossReason], None]) -> None:
        """Calls `listener` when the lease is lost, on any thread. It must return at once."""
        with self._mutex:
            if self._reason is None:
                self._on_loss.append(listener)
                return
            reason = self._reason
        listener(reason)

    def is_valid(self) -> bool:
        return self.loss() is None and not self._released

    def remaining(self) -> int:
        return max(self._deadline - now(), 0) if self.is_valid() else 0

    def check(self) -> None:
        reason = self.loss()
        if reason is not None:
            raise LostError(f"{self.name!r}: the lock was lost: {reason.value}")
        if self._released:
            raise NotHeldError(f"{self.name!r}: the lock was released")

    def release(self) -> bool:
        """Ends the lease for its holder. Returns whether this call ended it."""
        if self.loss() is not None:
            return False
        with self._mutex:
            if self._released or self._reason is not None:
                return False
            self._released = True
            self.ended.set()
            self._on_loss.clear()
        return True

    def is_released(self) -> bool:
        return self._released

    def extend(self, sent: int, answer: wire.Extended) -> None:
        """Takes the answer of a renewal. After the deadline it means nothing."""
        if self.loss() is not None:
            return
        with self._mutex:
            self._deadline = _deadline.deadline(sent, answer.valid_for_us, self.ttl)
            self.latest = max(self.latest, sent + answer.valid_for_us)
            self._failing = False
            self.token, self.epoch = answer.token, answer.epoch
            if answer.proof:
                self.proof = answer.proof
        self.plan_renewal()

    def note_failure(self, retry_at: int) -> None:
        """Notes a renewal without an answer, or one that the server could not do now."""
        self.renew_at = retry_at

    def note_sending(self, sent: int) -> None:
        """Notes that a renewal is about to be sent: it may count although no answer comes."""
        self._failing = True
        self.latest = max(self.latest, sent + self.ttl)
