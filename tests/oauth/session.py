"""What a Python client does with a server that asks for access tokens, once for both major versions of the SDK.

Prints "ok NAME" or "FAIL NAME: why" for each step, as the clients in TypeScript do.
"""

import asyncio
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import OAuthClientMetadata

STEP_LIMIT_S = 30
CALLBACK = "http://127.0.0.1:33418/callback"
CLIENT_DOCUMENTS = "https://clients.example/"


@dataclass
class Sdk:
    """Where the versions differ."""

    name: str
    http: ModuleType
    # The address the user came back to, as the SDK wants it.
    returned: Callable[[dict[str, str]], Any]
    # From the URL and an HTTP client to a session that is initialized.
    connect: Callable[[str, Any], AbstractAsyncContextManager[Any]]


@dataclass
class Storage:
    """What the SDK asks an application to keep."""

    tokens: Any = None
    client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


def ask(request: urllib.request.Request) -> tuple[int, str, str]:
    """Sends a request: status, `WWW-Authenticate`, body."""
    try:
        with urllib.request.urlopen(request, timeout=STEP_LIMIT_S) as answer:
            return answer.status, "", answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.headers.get("www-authenticate", ""), refused.read().decode()


@dataclass
class Application:
    """One client that logs its user in; `provider` is the SDK's."""

    sdk: Sdk
    url: str
    browser: str
    document: str | None = None
    storage: Storage = field(default_factory=Storage)
    sessions: set[str] = field(default_factory=set)
    callback: dict[str, str] = field(default_factory=dict)
    visits: int = 0

    def __post_init__(self) -> None:
        metadata = OAuthClientMetadata.model_validate(
            {
                "client_name": self.sdk.name,
                "redirect_uris": [CALLBACK],
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
                "token_endpoint_auth_method": "none",
            }
        )
        self.provider = OAuthClientProvider(
            server_url=self.url,
            client_metadata=metadata,
            storage=self.storage,
            redirect_handler=self.visit,
            callback_handler=self.returned,
            client_metadata_url=self.document,
        )

    async def visit(self, address: str) -> None:
        request = urllib.request.Request(f"{self.browser}?visit={urllib.parse.quote(address, safe='')}")
        status, _, text = await asyncio.to_thread(ask, request)
        assert status == 200, text
        self.visits += 1
        self.callback = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(text).query))

    async def returned(self) -> Any:
        return self.sdk.returned(self.callback)

    async def note_session(self, request: Any) -> None:
        if session := request.headers.get("mcp-session-id"):
            self.sessions.add(session)

    def http_client(self) -> Any:
        hooks = {"request": [self.note_session]}
        return self.sdk.http.AsyncClient(auth=self.provider, timeout=STEP_LIMIT_S, event_hooks=hooks)

    async def open(self, stack: AsyncExitStack) -> Any:
        client = await stack.enter_async_context(self.http_client())
        return await stack.enter_async_context(self.sdk.connect(self.url, client))


async def echo(session: Any) -> None:
    result = await session.call_tool("echo", {"text": "Ωμέγα"})
    assert result.content[0].text == "Ωμέγα", result


class Scenario:
    def __init__(self, sdk: Sdk, url: str, browser: str) -> None:
        self.sdk, self.url, self.browser = sdk, url, browser
        self.application = Application(sdk, url, browser)
        self.stack = AsyncExitStack()
        self.session: Any = None

    async def authorize(self) -> None:
        self.session = await self.application.open(self.stack)
        assert self.application.visits == 1, "the user was not asked once"

    async def call(self) -> None:
        tools = (await self.session.list_tools()).tools
        assert any(tool.name == "echo" for tool in tools), "no tool echo"
        await echo(self.session)

    async def refresh(self) -> None:
        """The first token is a short one: once gateway and SDK know it is over, the session goes on with another."""
        old = self.application.storage.tokens.access_token
        headers = {"authorization": f"Bearer {old}", "mcp-session-id": "none"}
        request = urllib.request.Request(self.url, method="DELETE", headers=headers)
        end = time.monotonic() + STEP_LIMIT_S / 2
        while True:
            status, challenge, _ = await asyncio.to_thread(ask, request)
            if status == 401 and not self.application.provider.context.is_token_valid():
                break
            assert time.monotonic() < end, f"an expired token is answered with {status}"
            await asyncio.sleep(0.05)
        assert 'error="invalid_token"' in challenge, challenge
        await echo(self.session)
        assert self.application.storage.tokens.access_token != old, "the token is still the old one"
        assert self.application.visits == 1, "the user was asked again"
        assert len(self.application.sessions) == 1, f"the session is another: {self.application.sessions}"

    async def step_up(self) -> None:
        """A tool that needs more than was granted: the user is asked once more, and the same session goes on."""
        result = await self.session.call_tool("update_resource", {})
        assert not getattr(result, "isError", getattr(result, "is_error", None)), result
        assert self.application.visits == 2, "the user was not asked"
        assert sorted(self.application.storage.tokens.scope.split()) == ["mcp:use", "mcp:write"]
        assert len(self.application.sessions) == 1, f"the session is another: {self.application.sessions}"

    async def document(self) -> None:
        """The same user with a client that has a metadata document instead of a registration."""
        document = f"{CLIENT_DOCUMENTS}{self.sdk.name}"
        application = Application(self.sdk, self.url, self.browser, document)
        async with AsyncExitStack() as stack:
            await echo(await application.open(stack))
        assert application.storage.client.client_id == document, application.storage.client

    async def close(self) -> None:
        await self.stack.aclose()


def cause(error: BaseException) -> str:
    """What went wrong, out of the groups that task groups put around it."""
    if inner := getattr(error, "exceptions", None):
        return "; ".join(map(cause, inner))
    return f"{type(error).__name__} {error}"


async def run(scenario: Scenario) -> int:
    failed = 0
    for name in ["authorize", "call", "refresh", "step-up", "document", "close"]:
        try:
            # No time limit here: a session outlives the step that opens it. Every request has one, and so has this process.
            await getattr(scenario, name.replace("-", "_"))()
            print(f"ok {name}", flush=True)
        except BaseException as error:  # noqa: BLE001 - a step may fail in any way, and the next has its try
            if isinstance(error, KeyboardInterrupt):
                raise
            failed += 1
            why = " ".join(cause(error).split())[:300]
            print(f"FAIL {name}: {why}", flush=True)
    return failed


def main(sdk: Sdk) -> None:
    if len(sys.argv) != 3:
        sys.exit("the URLs of the server and of the browser are missing")
    sys.exit(1 if asyncio.run(run(Scenario(sdk, *sys.argv[1:]))) else 0)
