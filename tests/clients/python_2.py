"""The scenario with the Python SDK 2.x, which probes for the stateless revision and has to fall back.

python python_2.py URL
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import mcp_types as types
from mcp import Client, ClientSession

from scenario import STEP_LIMIT_S, Handlers, Sdk, main


@asynccontextmanager
async def connect(url: str, handlers: Handlers) -> AsyncIterator[tuple[ClientSession, str]]:
    async with Client(
        url,
        read_timeout_seconds=STEP_LIMIT_S,
        sampling_callback=handlers.sampling,
        elicitation_callback=handlers.elicitation,
        list_roots_callback=handlers.roots,
        logging_callback=handlers.logging,
        message_handler=handlers.message,
    ) as client:
        yield client.session, client.protocol_version


async def announce_cancel(_session: ClientSession) -> None:
    """An abandoned call is announced by the SDK itself."""


main(Sdk(types=types, connect=connect, announce_cancel=announce_cancel))
