"""Calls of the protocol: the channels to the servers, and the meaning of a failure.

No call is repeated here. A call without an answer may have happened, so only its caller knows
whether it may be repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message
from grpc_status import rpc_status

from . import errors
from ._address import Address
from ._types import Holder, LockState, LossReason
from .errors import DistlockError
from .lock.v1 import lock_pb2 as wire

#: What a call leads to: its answer, or an error. An error is a value, since most are no surprise.
Outcome: TypeAlias = Message | DistlockError

_SERVICE = wire.DESCRIPTOR.services_by_name["LockService"]
_OPTIONS = [
    # The caller decides about a repetition.
    ("grpc.enable_retries", 0),
    # A server that went away without a word is noticed within seconds, also during a wait.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A lease does not wait for the two minutes that a channel may pause otherwise.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Clients of one process have nothing in common.
    ("grpc.use_local_subchannel_pool", 1),
    # A lock server is never behind the proxy of a browser.
    ("grpc.enable_http_proxy", 0),
]
_KINDS: dict[int, type[DistlockError]] = {
    wire.Error.Kind.Value("KIND_" + kind.kind.upper()): kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, DistlockError) and kind is not DistlockError
}


#: The codes with which a call may end that the lock server has not refused.
_NO_WORD = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)
_REASONS = wire.LossReason.items()


class Rpc:
    """The channels to the servers of one store. One of them is asked, until it does not answer."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._channels = [self._channel(target) for target in address.targets]
        self._current = 0
        self._mutex = threading.Lock()

    def _channel(self, target: str) -> grpc.Channel:
        if self._address.credentials is None:
            return grpc.insecure_channel(target, _OPTIONS)
        return grpc.secure_channel(target, self._address.credentials, _OPTIONS)

    def start(
        self, method: str, request: Message, within: int, done: Callable[[Outcome], None]
    ) -> Callable[[], object]:
        """Starts a call that may take `within` microseconds.

        `done` gets the outcome on a thread of gRPC. The result cancels the call.
        """
        at = self._current
        try:
            token = self._address.current_token()
        except errors.InvalidConfigError as error:
            done(error)
            return lambda: None
        except (OSError, ValueError) as error:
            done(errors.UnavailableError(f"the file with the token cannot be read: {error}"))
            return lambda: None
        about = _SERVICE.methods_by_name[method]
        answer: type[Any] = getattr(wire, about.output_type.name)
        call = self._channels[at].unary_unary(
            f"/{_SERVICE.full_name}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        ).future(
            request,
            timeout=within / 1_000_000,
            metadata=None if token is None else (("authorization", f"Bearer {token}"),),
        )
        call.add_done_callback(lambda ended: done(self._outcome(at, ended)))
        cancel: Callable[[], object] = call.cancel
        return cancel

    def _outcome(self, at: int, ended: Any) -> Outcome:
        if ended.code() is grpc.StatusCode.OK:
            answer: Message = ended.result()
            return answer
        error = told_error(ended)
        if error is not None:
            return error
        with self._mutex:
            # Others may have noticed it before, and the next server must not be skipped.
            if self._current == at:
                self._current = (at + 1) % len(self._channels)
        return silent_error(ended.code(), ended.details())

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


def told_error(ended: Any) -> DistlockError | None:
    """The error that the server put into the details of a refused call."""
    try:
        status = rpc_status.from_call(ended)
    except ValueError:
        return None
    told = wire.Error()
    if status is None or not any(detail.Unpack(told) for detail in status.details):
        return None
    kind = _KINDS.get(told.kind, errors.InternalError)
    if kind is errors.ClosedError:
        # It is the server's handle on its store that was closed, not this client.
        kind = errors.UnavailableError
    return kind(
        told.message,
        retryable=told.retryable,
        retry_in=told.retry_in_us / 1e6 if told.HasField("retry_in_us") else None,
        holder=holder(told.holder) if told.HasField("holder") else None,
    )


def silent_error(code: grpc.StatusCode, details: str | None) -> DistlockError:
    """The error of a call that ended without a word of the lock server."""
    said = f"{code.name.lower()}: {details}"
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return errors.AccessDeniedError(said)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.UnsupportedError(f"this is no lock server of distlock: {said}")
    if code in _NO_WORD:
        # UNAVAILABLE may mean that nothing was sent, and also that a connection broke after the
        # sending. gRPC does not tell the two apart.
        return errors.OutcomeUnknownError(f"no answer: {said}")
    return errors.InternalError(said)


def holder(told: wire.Holder) -> Holder:
    """The holder of a message."""
    held_for = told.held_for_us if told.HasField("held_for_us") else None
    expires_in = told.expires_in_us if told.HasField("expires_in_us") else None
    return Holder(
        holder=told.holder,
        meta=told.meta if told.HasField("meta") else None,
        token=told.token if told.HasField("token") else None,
        held_for=None if held_for is None else timedelta(microseconds=held_for),
        expires_in=None if expires_in is None else timedelta(microseconds=expires_in),
    )


def lock_state(told: Message) -> LockState:
    """The state of a message."""
    if not isinstance(told, wire.LockState):
        raise errors.InternalError("the answer belongs to another call")
    return LockState(
        name=told.name,
        held=holder(told.held) if told.HasField("held") else None,
        last_token=told.last_token if told.HasField("last_token") else None,
        waiters=told.waiters if told.HasField("waiters") else None,
    )


def loss_reason(told: int) -> LossReason:
    """The reason of a message. One that this version does not know means that the lock is gone."""
    names = {number: name.removeprefix("LOSS_REASON_") for name, number in _REASONS}
    name = names.get(told, "")
    return LossReason[name] if name in LossReason.__members__ else LossReason.REMOVED
