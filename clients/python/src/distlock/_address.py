"""The URL of a store behind lock servers: the same as for the tool and the library.

    distlock://HOST,HOST?OPTION=VALUE&..      distlocks:// with TLS

This module must never let a token leave the machine in clear text, unless the URL says so.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import grpc

from .errors import InvalidConfigError

DEFAULT_PORT = 7420
_OPTIONS = (
    "connect_timeout",
    "request_timeout",
    "socket",
    "tls",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "token",
    "token_file",
)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


@dataclass(frozen=True)
class Address:
    """Where the servers are, and how they are spoken to."""

    #: The servers, in the form of gRPC. One is asked after the other.
    targets: tuple[str, ...]
    credentials: grpc.ChannelCredentials | None
    #: Seconds.
    request_timeout: float
    token: str | None
    token_file: Path | None

    def current_token(self) -> str | None:
        """The token for a call. A file is read for each, so that a new token is used at once."""
        if self.token_file is None:
            return self.token
        # What is no ASCII becomes a character that no token has.
        return _token(self.token_file.read_text("ascii", "replace").strip())


def parse(url: str) -> Address:
    """Reads a URL. Raises `InvalidConfigError`, which names the mistake and repeats no value."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("distlock", "distlocks"):
        raise InvalidConfigError("a lock server has a URL like distlock://127.0.0.1:7420")
    hosts, _, query = rest.partition("?")
    options = _options(query)
    token, token_file = options.get("token"), options.get("token_file")
    if token is not None and token_file is not None:
        raise InvalidConfigError("options `token` and `token_file` are one too many")
    if token is not None:
        token = _token(token.strip())
    encrypted, socket = scheme == "distlocks", options.get("socket")
    if socket is not None:
        if encrypted:
            raise InvalidConfigError("a Unix socket has no TLS: write distlock:// with `socket`")
        targets = [f"unix:{socket}"]
    else:
        targets = [_target(host) for host in _hosts(hosts)]
    clear = options.get("tls")
    if clear not in (None, "disable") or (clear and encrypted):
        raise InvalidConfigError("option `tls` can be `disable` with distlock:// only")
    has_token = token is not None or token_file is not None
    if has_token and not (encrypted or clear or socket):
        for target in targets:
            if not _is_loopback(target):
                raise InvalidConfigError(
                    "the token would leave this machine in clear: write distlocks:// instead of "
                    "distlock://, or set the option `tls` to `disable` on a network that you trust"
                )
    return Address(
        targets=tuple(targets),
        credentials=_credentials(options, encrypted),
        request_timeout=_seconds(options.get("request_timeout", "3s")),
        token=token,
        token_file=None if token_file is None else Path(token_file),
    )


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name not in _OPTIONS:
            raise InvalidConfigError(f"no option {name!r}: {', '.join(_OPTIONS)} are possible")
        if name in options:
            raise InvalidConfigError(f"option {name!r} is given twice")
        options[name] = unquote(value)
    return options


def _hosts(text: str) -> list[str]:
    hosts = text.removesuffix("/")
    if "@" in hosts:
        raise InvalidConfigError("a lock server has no user and no password")
    if "/" in hosts:
        raise InvalidConfigError("a lock server has no path after its address")
    return hosts.split(",")


def _target(host: str) -> str:
    after = host.rpartition("]")[2] if host.startswith("[") else host
    name, colon, port = after.partition(":")
    if after == host and not name:
        raise InvalidConfigError("the address of a server is empty")
    if after != host and name:
        raise InvalidConfigError("an IPv6 address ends with `]`")
    if colon and not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise InvalidConfigError("the port of a server is no number from 0 to 65535")
    return host if colon else f"{host}:{DEFAULT_PORT}"


def _is_loopback(target: str) -> bool:
    name = target.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _credentials(options: dict[str, str], encrypted: bool) -> grpc.ChannelCredentials | None:
    ca, certificate, key = (options.get(f"tls_{part}") for part in ("ca", "cert", "key"))
    if not encrypted:
        if ca or certificate or key:
            raise InvalidConfigError("options `tls_*` are about TLS: write distlocks://")
        return None
    if (certificate is None) != (key is None):
        raise InvalidConfigError("options `tls_cert` and `tls_key` belong together")
    return grpc.ssl_channel_credentials(
        root_certificates=_read(ca), private_key=_read(key), certificate_chain=_read(certificate)
    )


def _read(path: str | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfigError(f"a file of TLS cannot be read: {error}") from error


def _token(text: str) -> str:
    # gRPC would refuse the header, and show the token.
    if re.fullmatch("[!-~]+", text) is None:
        raise InvalidConfigError("the token is empty, or has characters that no token has")
    return text


def _seconds(text: str) -> float:
    for unit, seconds in _UNITS.items():
        number = text.removesuffix(unit)
        if number != text and number.isascii() and number.isdigit():
            return int(number) * seconds
    raise InvalidConfigError("option `request_timeout` is no duration like 500ms or 3s")
