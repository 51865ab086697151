"""Checks the test vectors of `clients/vectors.json` against this package."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from distlock import _deadline
from distlock.lock.v1 import lock_pb2
from google.protobuf import json_format


def check(vectors: dict[str, Any]) -> None:
    for it in vectors["deadlines"]:
        assert _deadline.deadline(it["sent"], it["valid_for"], it["ttl"]) == it["deadline"], it
    for it in vectors["renewals"]:
        assert _deadline.next_renewal(it["answered"], it["deadline"]) == it["renew_at"], it
    for it in vectors["messages"]:
        message = getattr(lock_pb2, it["type"])
        read = message.FromString(bytes.fromhex(it["hex"]))
        assert json_format.MessageToDict(read) == it["json"], it
        written = json_format.ParseDict(it["json"], message())
        assert written.SerializeToString(deterministic=True).hex() == it["hex"], it


if __name__ == "__main__":
    check(json.loads(Path(sys.argv[1]).read_text()))
