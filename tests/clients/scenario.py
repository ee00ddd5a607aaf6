"""What a Python client does with the demo server, step by step, once for both major versions of the SDK.

Prints "ok NAME" or "FAIL NAME: why" for each step, as the clients in the other languages do. The versions share the
session's methods; where they differ, `Sdk` says how.
"""

import asyncio
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import anyio

from relay import Relay

REVISION = "2025-11-25"
STEP_LIMIT_S = 30
COUNTER = "demo://counter"

# Characters that JSON, UTF-8, SSE and line framing each treat in a way of their own.
TRICKY_TEXT = 'naïve Ωμέγα 漢字 👩‍👩‍👧 \u2028\u2029\u0085 "quoted" \\ back\\slash </script>\r\ndata: forged\n\n\t\u0007\u0000 end'
TRICKY_ARGUMENTS = {
    "text": TRICKY_TEXT,
    'clé "with" \n everything': [None, True, False, [], {}, ""],
    "numbers": [0, -1, 1.5, 1e-7, 1e21],
    "nested": {"a": {"b": {"c": {"d": [[[["deep"]]]]}}}},
}
# Beyond what a double holds; Python spells them out in full.
BIG_INTEGERS = [2**53 + 1, 2**63, -(2**63) - 1, 10**40 + 7]


@dataclass
class Handlers:
    """What the client answers and records; `types` is the SDK's module of protocol types."""

    types: ModuleType
    logged: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)

    async def sampling(self, _context: Any, params: Any) -> Any:
        asked = params.messages[0].content.text
        answer = {"role": "assistant", "model": "test-model", "content": {"type": "text", "text": f"answer to {asked}"}}
        return self.types.CreateMessageResult.model_validate(answer)

    async def elicitation(self, _context: Any, params: Any) -> Any:
        answer = {"action": "accept", "content": {"name": f"asked {params.message}"}}
        return self.types.ElicitResult.model_validate(answer)

    async def roots(self, _context: Any) -> Any:
        answer = {"roots": [{"uri": "file:///tmp/a%20root", "name": "a root"}]}
        return self.types.ListRootsResult.model_validate(answer)

    async def logging(self, params: Any) -> None:
        self.logged.append(params.level)

    async def message(self, message: Any) -> None:
        notification = getattr(message, "root", message)
        if getattr(notification, "method", None) == "notifications/resources/updated":
            self.updated.append(str(notification.params.uri))


@dataclass(frozen=True)
class Sdk:
    """Where the versions of the SDK differ."""

    types: ModuleType
    #: Opens a session at a URL; gives it with the revision it settled on.
    connect: Callable[[str, Handlers], AbstractAsyncContextManager[tuple[Any, str]]]
    #: Tells the server that the newest call is cancelled, if the SDK does not when the call is abandoned.
    announce_cancel: Callable[[Any], Awaitable[None]]


class Scenario:
    """The steps, each a method named as the step."""

    STEPS = ("list", "call", "integers", "progress", "sampling", "elicitation", "roots", "subscribe", "logging", "cancel", "resume")

    def __init__(self, sdk: Sdk, session: Any, relay: Relay, handlers: Handlers) -> None:
        self.sdk = sdk
        self.session = session
        self.relay = relay
        self.handlers = handlers

    async def tool(self, name: str, arguments: dict[str, Any] | None = None, on_progress: Any = None) -> dict[str, Any]:
        """The tool's result as the wire spells it."""
        result = await self.session.call_tool(name, arguments or {}, progress_callback=on_progress)
        return result.model_dump(by_alias=True, mode="json")

    async def answer_seen_by(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """Calls one of the tools that ask the client, whose text is the client's own answer as JSON."""
        result = await self.tool(name, arguments)
        same(result["isError"], False)
        return json.loads(result["content"][0]["text"])

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        with anyio.move_on_after(STEP_LIMIT_S / 2):
            while not condition():
                await anyio.sleep(0.01)
            return
        raise AssertionError(f"no {what}")

    async def list(self) -> None:
        tools = {tool.name for tool in (await self.session.list_tools()).tools}
        same({"echo", "slow", "ask_sampling"} - tools, set())
        resources = {str(resource.uri) for resource in (await self.session.list_resources()).resources}
        same(COUNTER in resources, True)
        templates = (await self.session.list_resource_templates()).model_dump(by_alias=True)["resourceTemplates"]
        same(len(templates) > 0, True)
        same(len((await self.session.list_prompts()).prompts) > 0, True)

    async def call(self) -> None:
        result = await self.tool("echo", TRICKY_ARGUMENTS)
        same(result["content"][0]["text"], TRICKY_TEXT)
        same(result["structuredContent"], TRICKY_ARGUMENTS)
        large = await self.tool("payload", {"bytes": 900_000})
        same(len(large["content"][0]["text"]), 900_000)

    async def integers(self) -> None:
        result = await self.tool("echo", {"text": "", "integers": BIG_INTEGERS})
        same(result["structuredContent"]["integers"], BIG_INTEGERS)

    async def progress(self) -> None:
        seen: list[tuple[float, float | None]] = []

        async def on_progress(progress: float, total: float | None, _message: str | None) -> None:
            seen.append((progress, total))

        await self.tool("slow", {"seconds": 0.3, "steps": 5}, on_progress)
        await self.until("fifth progress notification", lambda: len(seen) >= 5)
        same(seen, [(step, 5) for step in range(1, 6)])

    async def sampling(self) -> None:
        answer = await self.answer_seen_by("ask_sampling", {"prompt": "ünïcode?"})
        same(answer["content"]["text"], "answer to ünïcode?")

    async def elicitation(self) -> None:
        answer = await self.answer_seen_by("ask_elicitation", {"message": "who?"})
        same((answer["action"], answer["content"]["name"]), ("accept", "asked who?"))

    async def roots(self) -> None:
        answer = await self.answer_seen_by("ask_roots")
        same(answer["roots"][0]["uri"], "file:///tmp/a%20root")

    async def subscribe(self) -> None:
        async def read() -> str:
            return (await self.session.read_resource(COUNTER)).contents[0].text

        await self.session.subscribe_resource(COUNTER)
        before = await read()
        await self.tool("update_resource")
        await self.until("update", lambda: COUNTER in self.handlers.updated)
        same(await read() != before, True)
        await self.session.unsubscribe_resource(COUNTER)

    async def logging(self) -> None:
        await self.session.set_logging_level("warning")
        await self.tool("log", {"level": "info", "count": 2, "message": "below the level"})
        await self.tool("log", {"level": "error", "count": 3, "message": "above the level"})
        await self.until("third log message", lambda: len(self.handlers.logged) >= 3)
        same(self.handlers.logged, ["error"] * 3)

    async def cancel(self) -> None:
        """Half of it: that the server hears of it is what the driver sees at the server's standard input."""
        started = anyio.Event()

        async def on_progress(*_: Any) -> None:
            started.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.tool, "slow", {"seconds": 600, "steps": 1000}, on_progress)
            await started.wait()
            await self.sdk.announce_cancel(self.session)
            tasks.cancel_scope.cancel()
        result = await self.tool("echo", {"text": "still here"})
        same(result["content"][0]["text"], "still here")

    async def resume(self) -> None:
        seen: list[float] = []
        cut = 0

        async def on_progress(progress: float, *_: Any) -> None:
            nonlocal cut
            seen.append(progress)
            if progress == 2:
                cut = self.relay.cut()

        result = await self.tool("slow", {"seconds": 2, "steps": 8}, on_progress)
        same(cut > 0, True)
        same(result["isError"], False)
        await self.until("eighth progress notification", lambda: len(seen) >= 8)
        same(seen, [1, 2, 3, 4, 5, 6, 7, 8])


def same(found: Any, expected: Any) -> None:
    """Raises unless the two are equal; `assert` alone would not say how they differ."""
    if found != expected:
        raise AssertionError(f"{found!r} instead of {expected!r}")


def status_of_ping(url: str, session: str | None) -> int:
    """The HTTP status that a request in this session gets."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    request = urllib.request.Request(url, body, method="POST")
    request.add_header("content-type", "application/json")
    request.add_header("accept", "application/json, text/event-stream")
    request.add_header("mcp-protocol-version", REVISION)
    if session is not None:
        request.add_header("mcp-session-id", session)
    try:
        with urllib.request.urlopen(request, timeout=STEP_LIMIT_S) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


class Report:
    """Prints the outcome of each step and counts the failures."""

    def __init__(self) -> None:
        self.failed = 0

    async def step(self, name: str, step: Callable[[], Awaitable[Any]]) -> Any:
        try:
            outcome = await step()
        except Exception as error:
            self.failed += 1
            why = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"FAIL {name}: {why[:300]}", flush=True)
            return None
        print(f"ok {name}", flush=True)
        return outcome


async def perform(sdk: Sdk, url: str) -> int:
    """Runs every step and gives the number of failures."""
    relay = Relay(url)
    await relay.start()
    report = Report()
    handlers = Handlers(sdk.types)
    connection = AsyncExitStack()

    async def connect() -> Any:
        session, revision = await connection.enter_async_context(sdk.connect(relay.url, handlers))
        same(revision, REVISION)
        return session

    async def close() -> None:
        same(relay.session is not None, True)
        await connection.aclose()
        same(await asyncio.to_thread(status_of_ping, url, relay.session), 404)

    session = await report.step("connect", connect)
    scenario = Scenario(sdk, session, relay, handlers)
    for name in Scenario.STEPS:

        async def limited(step: Callable[[], Awaitable[None]] = getattr(scenario, name)) -> None:
            if session is None:
                raise AssertionError("not connected")
            with anyio.fail_after(STEP_LIMIT_S):
                await step()

        await report.step(name, limited)
    await report.step("close", close)
    await relay.close()
    return report.failed


def main(sdk: Sdk) -> None:
    """Runs every step against the URL of the command line and ends the process."""
    if len(sys.argv) != 2:
        sys.exit("the URL of the server is missing")
    sys.exit(1 if asyncio.run(perform(sdk, sys.argv[1])) else 0)
