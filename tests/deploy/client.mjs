// An MCP client that speaks to one port under the public name, and shows what its requests came back with.
import http from 'node:http';
import https from 'node:https';

const REVISION = '2025-11-25';

/** A client of the endpoint at `path`, over TLS if there is a `certificate`; `localAddress` is the loopback address it comes from. */
export class Client {
  #http;
  #options;
  #nextId = 0;

  constructor({ host, port, path, certificate, key, localAddress }) {
    this.#http = certificate ? https : http;
    const agent = new this.#http.Agent({ keepAlive: true, ca: certificate, servername: host, localAddress });
    const headers = { host, authorization: `Bearer ${key}`, accept: 'application/json, text/event-stream' };
    this.#options = { host: '127.0.0.1', port, path, agent, headers };
  }

  /** Sends a request; gives the response as soon as its head is there. */
  send(method, session, message) {
    const { headers, ...options } = this.#options;
    const body = message && JSON.stringify(message);
    const own = {
      ...headers,
      ...(session && { 'mcp-session-id': session, 'mcp-protocol-version': REVISION }),
      ...(body && { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }),
    };
    return new Promise((resolve, reject) => {
      this.#http.request({ ...options, method, headers: own }, resolve).once('error', reject).end(body);
    });
  }

  /** What who shows nothing is answered with: `{ status, challenge }`. */
  async challenge() {
    const { authorization, ...headers } = this.#options.headers;
    const response = await this.#get({ ...this.#options, headers });
    return { status: response.resume().statusCode, challenge: response.headers['www-authenticate'] };
  }

  /** The JSON document at a path of the same host. */
  async document(path) {
    const response = await this.#get({ ...this.#options, path });
    let text = '';
    for await (const chunk of response.setEncoding('utf8')) text += chunk;
    if (response.statusCode !== 200) throw new Error(`${path} was answered with ${response.statusCode}`);
    return JSON.parse(text);
  }

  #get(options) {
    return new Promise((resolve, reject) => {
      this.#http.get(options, resolve).once('error', reject);
    });
  }

  /** Posts a message and reads the whole answer: `{ status, session, messages }`. What comes before the end is shown to `seen` at once. */
  async post(session, message, seen = () => {}) {
    const response = await this.send('POST', session, { jsonrpc: '2.0', ...message });
    const messages = [];
    for await (const text of texts(response)) {
      messages.push(JSON.parse(text));
      seen(messages.at(-1));
    }
    return { status: response.statusCode, session: response.headers['mcp-session-id'], messages };
  }

  request(session, method, params, seen) {
    this.#nextId += 1;
    return this.post(session, { id: this.#nextId, method, params }, seen);
  }

  /** Opens a session; gives its id, or throws with the status. */
  async open() {
    const opened = await this.request(undefined, 'initialize', {
      protocolVersion: REVISION, capabilities: { elicitation: {} }, clientInfo: { name: 'deploy', version: '1' },
    });
    if (opened.status !== 200 || !opened.session) throw new Error(`initialize was answered with ${opened.status}`);
    const { status } = await this.post(opened.session, { method: 'notifications/initialized' });
    if (status !== 202) throw new Error(`initialized was answered with ${status}`);
    return opened.session;
  }

  /** Calls a tool; what the server asks meanwhile is declined, on a connection of its own. */
  call(session, name, args) {
    return this.request(session, 'tools/call', { name, arguments: args }, ({ method, id }) => {
      if (method && id !== undefined) this.post(session, { id, result: { action: 'decline' } }).catch(() => {}); // then the call fails
    });
  }
}

/** The JSON texts of a response: its body, or the data of each event as it arrives. */
async function* texts(response) {
  response.setEncoding('utf8');
  const stream = response.headers['content-type'] === 'text/event-stream';
  let text = '';
  for await (const chunk of response) {
    text += chunk;
    for (let end; stream && (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) {
      const data = /^data: (.+)$/m.exec(text.slice(0, end))?.[1];
      if (data) yield data;
    }
  }
  if (!stream && response.headers['content-type'] === 'application/json') yield text;
}
