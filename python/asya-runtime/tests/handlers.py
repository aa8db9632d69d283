"""Handlers as users write them."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import sys
import threading
import time
from pathlib import Path

import asya_runtime


def note(text: str) -> None:
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(f"{text}\n")


def echo(payload):
    return payload


def nothing(payload):
    note("called")


def constant(payload):
    """Returns what the payload asks for, by name."""
    return {
        "list": [1, 2, 3],
        "tuple": (1, 2),
        "empty": [],
        "a list as one payload": [[1, 2, 3]],
        "nulls": [None, None],
        "false": False,
        "text": "été <&> \u2028",
        "big": 2**70 + 1,
        "map": map(str, range(3)),
    }[payload]


def numbers(payload):
    yield from ({"number": number} for number in range(payload))


def breaks_off(payload):
    yield 1
    raise ValueError("no more")


def endless(payload):
    while True:
        yield "x" * 1000


async def echo_async(payload):
    await asyncio.sleep(0)
    return payload


async def numbers_async(payload):
    for number in range(payload):
        await asyncio.sleep(0)
        yield number


def hidden_async(payload):
    return echo_async(payload)


echo_partial = functools.partial(lambda prefix, payload: f"{prefix}{payload}", "hello ")


def with_asyncio_run(payload):
    """Existing handlers do this: no loop may run in their thread."""
    assert threading.current_thread() is threading.main_thread()
    return asyncio.run(echo_async(payload))


class Counter:
    def __init__(self, step=2):
        note("made")
        self.step = step
        self.total = 0

    def process(self, payload):
        self.total += self.step
        return self.total

    async def process_async(self, payload):
        return self.process(payload)

    @staticmethod
    def static(payload):
        return "static"

    @classmethod
    def of_class(cls, payload):
        return cls.__name__

    def __call__(self, payload):
        return ["called", self.process(payload)]


class Plain:
    def process(self, payload):
        return {"plain": payload}


class NeedsArguments:
    def __init__(self, model):
        raise AssertionError("never made")

    def process(self, payload):
        return payload


class Fails:
    def __init__(self):
        raise RuntimeError("no GPU here")

    def process(self, payload):
        return payload


class WarmUp:
    def asya_warm_up(self):
        note("warm")

    def process(self, payload):
        note("processed")
        return payload


not_callable = 42


def no_argument():
    return None


def who(payload):
    return asya_runtime.current_envelope()


def fail(payload):
    kinds = {
        "value": ValueError("bad value"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "empty": RuntimeError(),
        "long": ValueError("\u00e9" * 1_000_000),
        "surrogate": ValueError("file caf\udce9"),
        "base": type("Rare", (BaseException,), {})("rare"),
    }
    if payload == "unprintable":

        class Unprintable(Exception):
            def __str__(self):
                raise RuntimeError("no text")

        raise Unprintable
    if payload == "recursion":
        return fail(payload)
    raise kinds[payload]


def strange(payload):
    loop: list = []
    loop.append(loop)
    return {
        "nan": {"scores": [0.5, {"best": float("nan")}]},
        "infinity": float("-inf"),
        "set": {"tags": {1, 2}},
        "object": object(),
        "bytes": {"image": b"\x00"},
        "key": {(1, 2): 3},
        "loop": {"loop": loop},
        "large": "x" * 70_000,
    }[payload]


def advance_in_place(envelope):
    """The documented way to write an envelope handler."""
    envelope["payload"] = {"seen": envelope["payload"]}
    envelope["route"]["current"] += 1
    return envelope


def edit_route(envelope):
    """Changes the route as the payload says."""
    route = envelope["route"]
    how = envelope["payload"]
    if how == "replace all in place":
        route["actors"] = ["x", "y", "z"]
    elif how == "erase in place":
        del route["actors"][0]
        route["current"] = 0
    elif how == "clear in place":
        route["actors"].clear()
    elif how == "copy":
        return {"payload": 1, "route": {"actors": ["x", "y"], "current": 1}}
    elif how == "future":
        route["actors"][route["current"] + 1 :] = ["new", "newer"]
        route["current"] += 1
    elif how == "boolean":
        route["current"] = True
    elif how == "past the end":
        route["current"] = len(route["actors"]) + 1
    elif how == "no payload":
        del envelope["payload"]
    elif how == "not an object":
        return "text"
    elif how == "two":
        route["current"] += 1
        return [{**envelope, "payload": 1}, {**envelope, "payload": 2}]
    elif how == "nothing":
        return None
    return envelope


def mutate_and_yield(envelope):
    envelope["route"]["current"] += 1
    for number in range(3):
        envelope["payload"] = number
        yield envelope


def end(envelope):
    note(str(envelope.get("id")) if isinstance(envelope, dict) else "no object")
    return {}


def sleepy(payload):
    note(f"begin {payload}")
    until = time.monotonic() + 60
    while not Path(os.environ["NOTES"] + ".go").exists() and time.monotonic() < until:
        time.sleep(0.01)
    note(f"end {payload}")
    return payload


async def sleepy_async(payload):
    note(f"begin {payload}")
    try:
        while not Path(os.environ["NOTES"] + ".go").exists():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note(f"cancelled {payload}")
        raise
    note(f"end {payload}")
    return payload


def unavailable(payload):
    raise asya_runtime.Unavailable("no database")


def spins(payload):
    """One call of C code that never releases the interpreter lock."""
    note("begin")
    re.match(r"(a*)*b", "a" * 64)


async def blocks_the_loop(payload):
    note("begin")
    threading.Event().wait()


def meet(payload):
    """Returns when as many calls as the payload says are in here at once."""
    with _meeting:
        _here[payload] = _here.get(payload, 0) + 1
        _meeting.notify_all()
        return _meeting.wait_for(lambda: _here[payload] >= payload, 60)


_meeting = threading.Condition()
_here: dict = {}


def loud(payload):
    print("handler's own stdout", file=sys.stdout)
    return payload
