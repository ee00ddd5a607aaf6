// What a TypeScript client does with a server that asks for access tokens, step by step, once for both major versions of
// the SDK. Prints "ok NAME" or "FAIL NAME: why" for each step, as the clients in Python do.
//
// `sdk` hides where the versions differ:
//   connect(url, provider)               → { client, transport }; throws the SDK's UnauthorizedError where the user is asked
//   finishAuth(transport, callback)      takes the address the user came back to
//   callTool(client, params)             → the tool's result
//   UnauthorizedError
import assert from 'node:assert/strict';
import { report, until } from '../clients/steps.mjs';
import { CALLBACK, CLIENT_DOCUMENTS } from './authorization-server.mjs';

/** What the SDK asks an application to keep, and to do where the user is needed. */
class Application {
  #browser;
  #kept = {};
  redirectUrl = CALLBACK;
  /** The address the user came back to last. */
  callback;

  constructor(name, browser, document) {
    this.#browser = browser;
    this.clientMetadata = {
      client_name: name,
      redirect_uris: [CALLBACK],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
    };
    if (document) this.clientMetadataUrl = document;
  }

  state = () => (this.#kept.state ??= crypto.randomUUID());
  clientInformation = () => this.#kept.client;
  saveClientInformation = (client) => void (this.#kept.client = client);
  tokens = () => this.#kept.tokens;
  saveTokens = (tokens) => void (this.#kept.tokens = tokens);
  codeVerifier = () => this.#kept.verifier;
  discoveryState = () => this.#kept.discovery;
  saveDiscoveryState = (discovery) => void (this.#kept.discovery = discovery);
  saveCodeVerifier = (verifier) => void (this.#kept.verifier = verifier);

  async redirectToAuthorization(address) {
    this.callback = undefined;
    const response = await fetch(`${this.#browser}?visit=${encodeURIComponent(address)}`);
    const text = await response.text();
    assert.equal(response.status, 200, text);
    this.callback = new URL(text);
    assert.equal(this.callback.searchParams.get('state'), this.#kept.state, `state of ${text}`);
    assert.ok(this.callback.searchParams.get('code'), `no code in ${text}`);
  }

  forgetRefreshToken() {
    const { refresh_token, ...rest } = this.#kept.tokens;
    this.#kept.tokens = rest;
  }
}

class Session {
  #sdk;
  #url;
  #browser;
  #application;
  #connection;

  constructor(sdk, url, browser) {
    this.#sdk = sdk;
    this.#url = url;
    this.#browser = browser;
  }

  /** Connects without any token: the SDK finds its way to the authorization server, and back with one. */
  async #logIn(application) {
    let begun;
    const connecting = this.#sdk.connect(new URL(this.#url), application, (transport) => { begun = transport; });
    await assert.rejects(connecting, this.#sdk.UnauthorizedError);
    await this.#sdk.finishAuth(begun, application.callback);
    return this.#sdk.connect(new URL(this.#url), application);
  }

  async #echo({ client }) {
    const { content } = await this.#sdk.callTool(client, { name: 'echo', arguments: { text: 'Ωμέγα' } });
    assert.equal(content[0].text, 'Ωμέγα');
  }

  async authorize() {
    this.#application = new Application(this.#sdk.name, this.#browser);
    this.#connection = await this.#logIn(this.#application);
    assert.ok(this.#connection.transport.sessionId, 'no session id');
  }

  async call() {
    const { tools } = await this.#connection.client.listTools();
    assert.ok(tools.some(({ name }) => name === 'echo'), 'no tool echo');
    await this.#echo(this.#connection);
  }

  /** The first token is a short one: once the gateway refuses it, the SDK gets another and the session goes on. */
  async refresh() {
    const { sessionId } = this.#connection.transport;
    const { access_token: old } = this.#application.tokens();
    let status;
    let challenge;
    const ask = async () => {
      const answer = await fetch(this.#url, { method: 'DELETE', headers: { authorization: `Bearer ${old}`, 'mcp-session-id': 'none' } });
      await answer.body?.cancel();
      [status, challenge] = [answer.status, answer.headers.get('www-authenticate')];
    };
    let asked;
    await until(() => `401 for an expired token but ${status}`, () => {
      asked ??= ask().finally(() => { asked = undefined; });
      return status === 401;
    });
    assert.match(challenge, /error="invalid_token"/);
    await this.#echo(this.#connection);
    assert.notEqual(this.#application.tokens().access_token, old, 'the token is still the old one');
    assert.equal(this.#connection.transport.sessionId, sessionId, 'the session is another');
  }

  /** A tool that needs more than was granted: the user is asked once more, and the same session goes on. */
  async 'step-up'() {
    const { client, transport } = this.#connection;
    const { sessionId } = transport;
    const write = () => this.#sdk.callTool(client, { name: 'update_resource', arguments: {} });
    if (this.#sdk.refreshesOnStepUp) this.#application.forgetRefreshToken();
    await assert.rejects(write(), this.#sdk.UnauthorizedError);
    await this.#sdk.finishAuth(transport, this.#application.callback);
    assert.deepEqual(this.#application.tokens().scope.split(' ').sort(), ['mcp:use', 'mcp:write']);
    const result = await write();
    assert.ok(!result.isError);
    assert.equal(transport.sessionId, sessionId, 'the session is another');
  }

  /** The same user with a client that has a metadata document instead of a registration. */
  async document() {
    const application = new Application(this.#sdk.name, this.#browser, `${CLIENT_DOCUMENTS}${this.#sdk.name}`);
    const connection = await this.#logIn(application);
    assert.equal(application.clientInformation().client_id, application.clientMetadataUrl);
    await this.#echo(connection);
    await connection.transport.terminateSession();
    await connection.client.close();
  }

  async close() {
    await this.#connection.transport.terminateSession();
    await this.#connection.client.close();
  }
}

/** Runs every step against the server and with the browser of the command line and ends the process. */
export async function main(sdk) {
  const [url, browser] = process.argv.slice(2);
  if (!browser) {
    console.error('the URLs of the server and of the browser are missing');
    process.exit(2);
  }
  const session = new Session(sdk, url, browser);
  const names = ['authorize', 'call', 'refresh', 'step-up', 'document', 'close'];
  const failed = await report(names.map((name) => [name, () => session[name]()]));
  process.exit(failed ? 1 : 0);
}
