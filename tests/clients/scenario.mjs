// What a TypeScript client does with the demo server, step by step, once for both major versions of the SDK. Prints
// "ok NAME" or "FAIL NAME: why" for each step, as the clients in the other languages do.
//
// `sdk` hides where the versions differ:
//   connect(url, capabilities, handlers)  → { client, transport, protocolVersion }
//   handlers.requests, handlers.notifications: by method, each called with the params
//   callTool(client, params, options)     → the tool's result
import assert from 'node:assert/strict';
import { startRelay } from './relay.mjs';
import { report, until } from './steps.mjs';

const REVISION = '2025-11-25';
const COUNTER = 'demo://counter';

// Characters that JSON, UTF-16, SSE and line framing each treat in a way of their own.
const TRICKY_TEXT = 'naïve Ωμέγα 漢字 👩‍👩‍👧 \u2028\u2029\u0085 "quoted" \\ back\\slash </script>\r\ndata: forged\n\n\t\u0007\u0000 end';
const TRICKY_ARGUMENTS = {
  text: TRICKY_TEXT,
  'clé "with" \n everything': [null, true, false, [], {}, ''],
  numbers: [0, -1, 1.5, 1e-7, 1e21, Number.MAX_SAFE_INTEGER, Number.MIN_SAFE_INTEGER],
  nested: { a: { b: { c: { d: [[[['deep']]]] } } } },
};

class Scenario {
  #sdk;
  #url;
  #relay;
  #connection;
  #logged = [];
  #updated = [];

  constructor(sdk, url) {
    this.#sdk = sdk;
    this.#url = url;
  }

  get #client() {
    if (!this.#connection) throw new Error('not connected');
    return this.#connection.client;
  }

  #call(name, args = {}, options) {
    return this.#sdk.callTool(this.#client, { name, arguments: args }, options);
  }

  /** Calls one of the tools that ask the client, whose text is the client's own answer as JSON. */
  async #answerSeenBy(tool, args) {
    const result = await this.#call(tool, args);
    assert.ok(!result.isError, `${tool} failed: ${result.content[0].text}`);
    return JSON.parse(result.content[0].text);
  }

  async connect() {
    this.#relay = await startRelay(this.#url);
    const handlers = {
      requests: {
        'sampling/createMessage': (params) => ({
          role: 'assistant',
          model: 'test-model',
          stopReason: 'endTurn',
          content: { type: 'text', text: `answer to ${params.messages[0].content.text}` },
        }),
        'elicitation/create': (params) => ({ action: 'accept', content: { name: `asked ${params.message}` } }),
        'roots/list': () => ({ roots: [{ uri: 'file:///tmp/a%20root', name: 'a root' }] }),
      },
      notifications: {
        'notifications/message': (params) => void this.#logged.push(params),
        'notifications/resources/updated': (params) => void this.#updated.push(params.uri),
      },
    };
    const capabilities = { sampling: {}, elicitation: {}, roots: {} };
    this.#connection = await this.#sdk.connect(new URL(this.#relay.url), capabilities, handlers);
    assert.equal(this.#connection.protocolVersion, REVISION);
    assert.ok(this.#client.getServerVersion().name);
    assert.ok(this.#connection.transport.sessionId, 'no session id');
  }

  async list() {
    const client = this.#client;
    const { tools } = await client.listTools();
    for (const name of ['echo', 'slow', 'ask_sampling']) assert.ok(tools.some((tool) => tool.name === name), `no tool ${name}`);
    const { resources } = await client.listResources();
    assert.ok(resources.some(({ uri }) => uri === COUNTER), `no resource ${COUNTER}`);
    const { resourceTemplates } = await client.listResourceTemplates();
    assert.ok(resourceTemplates.length > 0, 'no template');
    const { prompts } = await client.listPrompts();
    assert.ok(prompts.length > 0, 'no prompt');
  }

  async call() {
    const result = await this.#call('echo', TRICKY_ARGUMENTS);
    assert.equal(result.content[0].text, TRICKY_TEXT);
    assert.deepEqual(result.structuredContent, TRICKY_ARGUMENTS);
    const bytes = 900_000; // the Python SDK 2.x takes events of up to 1 MiB
    const large = await this.#call('payload', { bytes });
    assert.equal(large.content[0].text.length, bytes);
  }

  async progress() {
    const seen = [];
    await this.#call('slow', { seconds: 0.3, steps: 5 }, { onprogress: ({ progress, total }) => seen.push([progress, total]) });
    assert.deepEqual(seen, [[1, 5], [2, 5], [3, 5], [4, 5], [5, 5]]);
  }

  async sampling() {
    const answer = await this.#answerSeenBy('ask_sampling', { prompt: 'ünïcode?' });
    assert.equal(answer.content.text, 'answer to ünïcode?');
  }

  async elicitation() {
    const answer = await this.#answerSeenBy('ask_elicitation', { message: 'who?' });
    assert.deepEqual([answer.action, answer.content.name], ['accept', 'asked who?']);
  }

  async roots() {
    const answer = await this.#answerSeenBy('ask_roots');
    assert.equal(answer.roots[0].uri, 'file:///tmp/a%20root');
  }

  async subscribe() {
    const read = async () => (await this.#client.readResource({ uri: COUNTER })).contents[0].text;
    await this.#client.subscribeResource({ uri: COUNTER });
    const before = await read();
    await this.#call('update_resource');
    await until(() => 'update arrived', () => this.#updated.includes(COUNTER));
    assert.notEqual(await read(), before);
    await this.#client.unsubscribeResource({ uri: COUNTER });
  }

  async logging() {
    await this.#client.setLoggingLevel('warning');
    await this.#call('log', { level: 'info', count: 2, message: 'below the level' });
    await this.#call('log', { level: 'error', count: 3, message: 'above the level' });
    await until(() => `third message, only ${this.#logged.length}`, () => this.#logged.length >= 3);
    assert.deepEqual(this.#logged.map(({ level }) => level), ['error', 'error', 'error']);
  }

  /** Half of it: that the server hears of it is what the driver sees at the server's standard input. */
  async cancel() {
    const abort = new AbortController();
    const call = this.#call('slow', { seconds: 600, steps: 1000 }, { signal: abort.signal, onprogress: () => abort.abort('enough') });
    await assert.rejects(call);
    const { content } = await this.#call('echo', { text: 'still here' });
    assert.equal(content[0].text, 'still here');
  }

  async resume() {
    const seen = [];
    let cut = 0;
    const onprogress = ({ progress }) => {
      seen.push(progress);
      if (progress === 2) cut = this.#relay.cut();
    };
    const result = await this.#call('slow', { seconds: 2, steps: 8 }, { onprogress });
    assert.ok(cut > 0, 'nothing was cut');
    assert.ok(!result.isError);
    assert.deepEqual(seen, [1, 2, 3, 4, 5, 6, 7, 8], 'progress was lost or repeated');
  }

  async close() {
    const { transport, protocolVersion } = this.#connection ?? {};
    const session = transport?.sessionId;
    assert.ok(session, 'not connected');
    await transport.terminateSession();
    await this.#client.close();
    const gone = await fetch(this.#url, {
      method: 'POST',
      headers: {
        accept: 'application/json, text/event-stream',
        'content-type': 'application/json',
        'mcp-protocol-version': protocolVersion,
        'mcp-session-id': session,
      },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' }),
    });
    assert.equal(gone.status, 404, 'status of a request in the ended session');
  }
}

/** Runs every step against the URL of the command line and ends the process. */
export async function main(sdk) {
  const url = process.argv[2];
  if (!url) {
    console.error('the URL of the server is missing');
    process.exit(2);
  }
  const scenario = new Scenario(sdk, url);
  const names = ['connect', 'list', 'call', 'progress', 'sampling', 'elicitation', 'roots', 'subscribe', 'logging', 'cancel', 'resume', 'close'];
  const failed = await report(names.map((name) => [name, () => scenario[name]()]));
  process.exit(failed ? 1 : 0);
}
