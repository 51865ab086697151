"""What callers get: holders, the state of a lock, and how a lock ended."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, as the holder calls itself."""

    holder: str
    meta: str | None
    token: int | None
    held_for: timedelta | None
    expires_in: timedelta | None


@dataclass(frozen=True)
class LockState:
    """What the server knows of a lock at one moment."""

    name: str
    #: `None`: the lock is free.
    held: Holder | None
    #: The token of the last grant, if the store keeps it.
    last_token: int | None
    #: How many wait, if the store knows it.
    waiters: int | None


class LossReason(enum.Enum):
    """Why a lock was lost."""

    #: The local deadline passed, although the server answered.
    EXPIRED = "expired"
    #: Somebody freed the lock by hand.
    FORCE_RELEASED = "force_released"
    #: The server has lost what it knew of its locks.
    HISTORY_CHANGED = "history_changed"
    #: The name belongs to another member of the ring.
    MOVED = "moved"
    #: The lock is gone from the store.
    REMOVED = "removed"
    #: The session of an agent with its store has ended.
    SESSION_LOST = "session_lost"
    #: Another owner holds the lock.
    TAKEN_OVER = "taken_over"
    #: The local deadline passed while the server did not answer.
    UNREACHABLE = "unreachable"


class Released(enum.Enum):
    """How a lock ended."""

    #: The lock was held to the end, and is free now.
    CLEAN = "clean"
    #: The lock was lost before.
    ALREADY_LOST = "already_lost"
    #: The server did not confirm the release. The client goes on asking until the lease has ended.
    UNCONFIRMED = "unconfirmed"
