"""The session with the Python SDK 1.x.      python python_1.py URL BROWSER"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from session import STEP_LIMIT_S, Sdk, main


@asynccontextmanager
async def connect(url: str, client: httpx.AsyncClient) -> AsyncIterator[ClientSession]:
    async with (
        streamable_http_client(url, http_client=client) as (read, write, _),
        ClientSession(read, write, read_timeout_seconds=timedelta(seconds=STEP_LIMIT_S)) as session,
    ):
        await session.initialize()
        yield session


def returned(callback: dict[str, str]) -> tuple[str, str | None]:
    return callback["code"], callback.get("state")


main(Sdk(name="python-1", http=httpx, returned=returned, connect=connect))
