"""Does what a script says, one order per line, with the client of this package.

    python driver.py blocking|asyncio

Each order is a JSON object with an `id`, and has one answer with the same `id`. Orders do not wait
for each other. `{"event": "lost", ..}` tells the loss of a lease. The script, and the same driver
in Rust, are in `tests/clients` of the repository.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import distlock
from distlock import aio

Order: TypeAlias = dict[str, Any]
Answer: TypeAlias = dict[str, Any]
Lease: TypeAlias = distlock.Lease | aio.Lease

_output = threading.Lock()


def boot_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def tell(line: Answer) -> None:
    with _output:
        print(json.dumps({**line, "at_us": boot_us()}), flush=True)


def failure(error: BaseException) -> Answer:
    if isinstance(error, distlock.DistlockError):
        told: Answer = {"error": error.kind, "text": str(error)}
        if error.holder is not None:
            told["holder"] = error.holder.holder
        return told
    if isinstance(error, asyncio.CancelledError):
        return {"error": "cancelled"}
    return {"error": "unexpected", "text": repr(error)}


def asked(order: Order) -> dict[str, Any]:
    return {"ttl": order["ttl_ms"] / 1000, "timeout": order["wait_ms"] / 1000}


def seen(state: distlock.LockState) -> Answer:
    held = state.held
    return {
        "holder": None if held is None else held.holder,
        "token": None if held is None else held.token,
    }


def count_once(path: str) -> None:
    """One step of a counter that two at a time would break: it is read, and written later."""
    file = Path(path)
    number = int(file.read_text())
    time.sleep(0.001)
    file.write_text(str(number + 1))


class Leases:
    """The leases by their numbers, as the script names them."""

    def __init__(self) -> None:
        self._all: dict[int, Lease] = {}
        self._mutex = threading.Lock()

    def add(self, number: int, lease: Lease) -> Answer:
        with self._mutex:
            self._all[number] = lease
        return {"lease": number, "token": lease.token, "remaining_ms": lease.remaining() * 1000}

    def get(self, order: Order) -> Any:
        with self._mutex:
            return self._all[order["lease"]]

    def state(self, order: Order) -> Answer:
        lease = self.get(order)
        loss = lease.loss
        return {
            "valid": lease.is_valid(),
            "remaining_ms": lease.remaining() * 1000,
            "loss": None if loss is None else loss.value,
        }


def on_loss(number: int) -> Callable[[Lease, distlock.LossReason], None]:
    return lambda _, reason: tell({"event": "lost", "lease": number, "reason": reason.value})


class Blocking:
    """The orders, each on a thread of its own."""

    def __init__(self) -> None:
        self.leases = Leases()
        self.client: distlock.Client

    def run(self) -> None:
        for line in sys.stdin:
            threading.Thread(target=self.carry_out, args=(json.loads(line),), daemon=True).start()

    def carry_out(self, order: Order) -> None:
        try:
            answer = getattr(self, "do_" + order["do"])(order)
        except BaseException as error:
            answer = failure(error)
        tell({**answer, "id": order["id"]})

    def do_open(self, order: Order) -> Answer:
        self.client = distlock.Client(order["url"])
        return {}

    def do_acquire(self, order: Order) -> Answer:
        number = order["id"]
        lease = self.client.acquire(order["name"], on_loss=on_loss(number), **asked(order))
        return self.leases.add(number, lease)

    def do_try(self, order: Order) -> Answer:
        number, ttl = order["id"], order["ttl_ms"] / 1000
        lease = self.client.try_acquire(order["name"], ttl=ttl, on_loss=on_loss(number))
        return {"busy": True} if lease is None else self.leases.add(number, lease)

    def do_state(self, order: Order) -> Answer:
        return self.leases.state(order)

    def do_release(self, order: Order) -> Answer:
        return {"released": self.leases.get(order).release().value}

    def do_force(self, order: Order) -> Answer:
        return {"forced": self.client.force_release(order["name"], order["token"])}

    def do_inspect(self, order: Order) -> Answer:
        return seen(self.client.inspect(order["name"]))

    def do_block(self, order: Order) -> Answer:
        with self.client.acquire(order["name"], **asked(order)):
            time.sleep(order["hold_ms"] / 1000)
        return {"block": "ended"}

    def do_count(self, order: Order) -> Answer:
        failures: list[Answer] = []

        def work() -> None:
            try:
                for _ in range(order["times"]):
                    with self.client.acquire(order["name"], **asked(order)):
                        count_once(order["file"])
            except BaseException as error:
                failures.append(failure(error))

        threads = [threading.Thread(target=work) for _ in range(order["tasks"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failures[0] if failures else {}

    def do_close(self, order: Order) -> Answer:
        self.client.close()
        return {}


class Asyncio:
    """The orders, each as a task of its own."""

    def __init__(self) -> None:
        self.leases = Leases()
        self.client: aio.Client
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            order = json.loads(line)
            self.tasks[order["id"]] = loop.create_task(self.carry_out(order))

    async def carry_out(self, order: Order) -> None:
        do: Callable[[Order], Coroutine[Any, Any, Answer]] = getattr(self, "do_" + order["do"])
        try:
            answer = await do(order)
        except BaseException as error:
            answer = failure(error)
        tell({**answer, "id": order["id"]})

    async def do_open(self, order: Order) -> Answer:
        self.client = aio.Client(order["url"])
        return {}

    async def do_acquire(self, order: Order) -> Answer:
        number = order["id"]
        lease = await self.client.acquire(order["name"], on_loss=on_loss(number), **asked(order))
        return self.leases.add(number, lease)

    async def do_try(self, order: Order) -> Answer:
        number, ttl = order["id"], order["ttl_ms"] / 1000
        lease = await self.client.try_acquire(order["name"], ttl=ttl, on_loss=on_loss(number))
        return {"busy": True} if lease is None else self.leases.add(number, lease)

    async def do_state(self, order: Order) -> Answer:
        return self.leases.state(order)

    async def do_release(self, order: Order) -> Answer:
        return {"released": (await self.leases.get(order).release()).value}

    async def do_cancel(self, order: Order) -> Answer:
        self.tasks[order["task"]].cancel()
        return {}

    async def do_force(self, order: Order) -> Answer:
        return {"forced": await self.client.force_release(order["name"], order["token"])}

    async def do_inspect(self, order: Order) -> Answer:
        return seen(await self.client.inspect(order["name"]))

    async def do_block(self, order: Order) -> Answer:
        async with self.client.acquire(order["name"], **asked(order)):
            await asyncio.sleep(order["hold_ms"] / 1000)
        return {"block": "ended"}

    async def do_count(self, order: Order) -> Answer:
        async def work() -> None:
            for _ in range(order["times"]):
                async with self.client.acquire(order["name"], **asked(order)):
                    await asyncio.to_thread(count_once, order["file"])

        await asyncio.gather(*(work() for _ in range(order["tasks"])))
        return {}

    async def do_close(self, order: Order) -> Answer:
        await self.client.close()
        return {}


if __name__ == "__main__":
    if sys.argv[1:] == ["blocking"]:
        Blocking().run()
    elif sys.argv[1:] == ["asyncio"]:
        asyncio.run(Asyncio().run())
    else:
        raise SystemExit(__doc__)
