"""A TCP relay between a client and the server under test that can reset every connection it carries."""

import asyncio
import re
import socket
import struct
from urllib.parse import urlsplit

SESSION_HEADER = re.compile(rb"^mcp-session-id: *(\S+)\r$", re.IGNORECASE | re.MULTILINE)


class Relay:
    """Relays to the origin of `target`; `url` is the same address through the relay."""

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target)
        self.url = ""
        #: The session that the server named last, or None.
        self.session: str | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}{self.target.path}"

    def cut(self) -> int:
        """Resets all open connections, to both sides, and gives the number of sockets."""
        writers = list(self._writers)
        for writer in writers:
            # No lingering turns the close into a reset (RFC 9293, 3.10.4).
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return len(writers)

    async def close(self) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(self.target.hostname, self.target.port)
            await asyncio.gather(self._copy(reader, upstream_writer), self._copy(upstream_reader, writer, watch=True))
        except OSError:
            writer.transport.abort()
        finally:
            self._connections.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, watch: bool = False) -> None:
        self._writers.add(writer)
        try:
            while data := await reader.read(65536):
                if watch and (found := SESSION_HEADER.search(data)):
                    self.session = found[1].decode()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # a reset of one side ends the other below
        finally:
            self._writers.discard(writer)
            writer.close()
