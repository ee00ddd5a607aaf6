// Serves the fixture with the SDK's own Streamable HTTP transport, without a gateway: the measure of what a gateway can
// reach, and the control that tells a fault of the gateway from one of the fixture, the suite or a client.
//
//   node direct.mjs [PORT]      prints the URL as one line on stdout; runs until SIGTERM or SIGINT
import { randomUUID } from 'node:crypto';
import { createServer as createHttpServer } from 'node:http';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { createServer } from './fixture.mjs';

const LOOPBACK_NAMES = ['localhost', '127.0.0.1', '[::1]'];

/** The events of one session, replayed by stream; the SDK asks for both halves of an id in one string. */
class EventLog {
  #entries = [];

  async storeEvent(stream, message) {
    this.#entries.push({ stream, message });
    return `${stream}/${this.#entries.length}`;
  }

  async getStreamIdForEventId(id) {
    return this.#entries[EventLog.#position(id) - 1]?.stream;
  }

  async replayEventsAfter(id, { send }) {
    const seen = EventLog.#position(id);
    const stream = this.#entries[seen - 1]?.stream;
    for (const [index, entry] of this.#entries.entries()) {
      // A priming event was stored with an empty message: it marks a position and has nothing to replay.
      if (index >= seen && entry.stream === stream && entry.message.jsonrpc) {
        await send(`${stream}/${index + 1}`, entry.message);
      }
    }
    return stream;
  }

  static #position(id) {
    return Number(id.slice(id.lastIndexOf('/') + 1));
  }
}

const sessions = new Map();

async function openSession() {
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new EventLog(),
    retryInterval: 500,
    onsessioninitialized: (id) => void sessions.set(id, transport),
    onsessionclosed: (id) => void sessions.delete(id),
  });
  await createServer().connect(transport);
  return transport;
}

function refuse(response, status, message) {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify({ jsonrpc: '2.0', id: null, error: { code: -32001, message } }));
}

/** Whether a Host header names this machine, on whatever port a relay listens (the SDK's own check wants the port). */
function isLoopback(host = '') {
  return LOOPBACK_NAMES.includes(host.replace(/:\d+$/, ''));
}

async function answer(request, response) {
  if (!isLoopback(request.headers.host)) {
    refuse(response, 403, 'Host not allowed');
    return;
  }
  const id = request.headers['mcp-session-id'];
  if (id !== undefined && !sessions.has(id)) {
    refuse(response, 404, 'Session not found');
    return;
  }
  const transport = sessions.get(id) ?? (await openSession());
  await transport.handleRequest(request, response);
}

const listener = createHttpServer((request, response) => {
  answer(request, response).catch((error) => {
    console.error(error);
    response.destroy();
  });
});
listener.listen(Number(process.argv[2] ?? 0), '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${listener.address().port}/mcp`);
});
