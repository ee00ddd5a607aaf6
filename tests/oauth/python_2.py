"""The session with the Python SDK 2.x.      python python_2.py URL BROWSER"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult

from session import STEP_LIMIT_S, Sdk, main


@asynccontextmanager
async def connect(url: str, client: httpx2.AsyncClient) -> AsyncIterator[ClientSession]:
    transport = streamable_http_client(url, http_client=client)
    async with Client(transport, read_timeout_seconds=STEP_LIMIT_S) as connected:
        yield connected.session


def returned(callback: dict[str, str]) -> AuthorizationCodeResult:
    return AuthorizationCodeResult.model_validate(callback)


main(Sdk(name="python-2", http=httpx2, returned=returned, connect=connect))
