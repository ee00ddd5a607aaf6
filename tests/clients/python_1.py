"""The scenario with the Python SDK 1.x.      python python_1.py URL"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client

from scenario import STEP_LIMIT_S, Handlers, Sdk, main


@asynccontextmanager
async def connect(url: str, handlers: Handlers) -> AsyncIterator[tuple[ClientSession, str]]:
    async with (
        streamable_http_client(url) as (read, write, _),
        ClientSession(
            read,
            write,
            read_timeout_seconds=timedelta(seconds=STEP_LIMIT_S),
            sampling_callback=handlers.sampling,
            elicitation_callback=handlers.elicitation,
            list_roots_callback=handlers.roots,
            logging_callback=handlers.logging,
            message_handler=handlers.message,
        ) as session,
    ):
        yield session, str((await session.initialize()).protocolVersion)


async def announce_cancel(session: ClientSession) -> None:
    # This version has no way to cancel a call nor one to learn its id; it numbers its requests in order.
    newest = session._request_id - 1
    params = types.CancelledNotificationParams(requestId=newest, reason="enough")
    notification = types.CancelledNotification(method="notifications/cancelled", params=params)
    await session.send_notification(types.ClientNotification(notification))


main(Sdk(types=types, connect=connect, announce_cancel=announce_cancel))
