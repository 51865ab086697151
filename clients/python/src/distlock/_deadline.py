"""The arithmetic of the local deadline of a lease, in whole microseconds.

The deadline is never later than the end of the lease at the server. The server counts from the
moment at which it receives a request, and the deadline counts from the moment before its sending.
This module reads no clock but the one below: callers pass every moment in.
"""

from __future__ import annotations

import time

SECOND = 1_000_000

#: The boot-time clock goes on while the machine sleeps, and no change of the date moves it.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> int:
    """The microseconds since the start of the machine."""
    return time.clock_gettime_ns(_CLOCK) // 1000


def margin(valid_for: int, ttl: int) -> int:
    """The part at the end of a lease that its holder does not use.

    A tenth of the lease, at least 50 ms, and at most half of the lease. `valid_for` is longer than
    the TTL by the time for which a call waited at the server: of that time a thousandth is enough,
    which covers clocks that run at different rates.
    """
    lease = min(valid_for, ttl)
    waited = valid_for - lease
    return min(max(lease // 10, 50_000), lease // 2) + waited // 1000


def deadline(sent: int, valid_for: int, ttl: int) -> int:
    """The moment from which on the holder must not act as the holder any more."""
    return sent + valid_for - margin(valid_for, ttl)


def next_renewal(answered: int, deadline_at: int) -> int:
    """The moment of the next renewal, after an answer that arrived at `answered`."""
    return answered + max(deadline_at - answered, 0) // 3
