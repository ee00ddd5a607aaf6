// An authorization server that other people wrote, npm's oidc-provider, with what MCP clients need: resource indicators
// (RFC 8707), dynamic registration (RFC 7591), client id metadata documents, and access tokens as JWTs or opaque ones
// with introspection (RFC 7662). It remembers what it was asked for.
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { Provider, errors } from 'oidc-provider';

/** How long the first token of a registered client is good for; every other is good for an hour. */
export const SHORT_S = 4;

/** Where the metadata documents of clients are. The authorization server finds them by an own `fetch`, no such host is asked. */
export const CLIENT_DOCUMENTS = 'https://clients.example/';

/** Where clients would listen for the user's return. */
export const CALLBACK = 'http://127.0.0.1:33418/callback';

const secret = () => randomBytes(24).toString('base64url');

function signingKey(kid) {
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  return { ...privateKey.export({ format: 'jwk' }), kid, use: 'sig', alg: 'ES256' };
}

/** What a client's metadata document says: its name is the last part of its address. */
function clientDocument(address) {
  return {
    client_id: address,
    client_name: address.slice(CLIENT_DOCUMENTS.length),
    redirect_uris: [CALLBACK],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
  };
}

async function fetchOverridden(address) {
  if (!String(address).startsWith(CLIENT_DOCUMENTS)) throw new Error(`nothing to fetch at ${address}`);
  return Response.json(clientDocument(String(address)));
}

/**
 * SDKs register for the scopes of the first challenge. A server that held a client to them could never grant more later,
 * so this one, like others, lets a client ask for what its resources know.
 */
async function registerForAllScopes(ctx, next) {
  if (ctx.method === 'POST' && ctx.path === '/reg') {
    const chunks = [];
    for await (const chunk of ctx.req) chunks.push(chunk);
    const { scope, ...metadata } = JSON.parse(Buffer.concat(chunks));
    ctx.req.body = metadata;
  }
  await next();
}

export class AuthorizationServer {
  #server;
  #provider;
  #resources = new Map();
  #format;
  #served = new Set();
  /** Confidential clients: one that gets tokens for itself, and the gateway, which asks what opaque ones mean. */
  robot = { client_id: 'robot', client_secret: secret() };
  gateway = { client_id: 'gateway', client_secret: secret() };
  /** Requests that were granted, in order: `{ kind, client, params }` with kind `register`, `authorize` or a grant type. */
  granted = [];
  /** How often it was asked what a token means. */
  introspections = 0;

  /** Starts one on a free port. `format` is that of its access tokens: `jwt` or `opaque`. */
  static async start(format) {
    const started = new AuthorizationServer();
    started.#format = format;
    started.#server = createServer((request, response) => started.#provider.callback()(request, response)).listen(0, '127.0.0.1');
    await once(started.#server, 'listening');
    started.issuer = `http://127.0.0.1:${started.#server.address().port}`;
    started.rotate('first');
    return started;
  }

  /** Makes `scopes` grantable for a resource. */
  serve(resource, ...scopes) {
    this.#resources.set(resource, scopes.join(' '));
  }

  /** Signs with a new key from now on; the one before is gone. */
  rotate(kid) {
    const provider = new Provider(this.issuer, this.#configuration(kid));
    provider.use(registerForAllScopes);
    provider.on('registration_create.success', (ctx, client) => this.#note('register', client, ctx.oidc.body));
    provider.on('authorization.success', (ctx) => this.#note('authorize', ctx.oidc.client, ctx.oidc.params));
    provider.on('grant.success', (ctx) => this.#note(ctx.oidc.params.grant_type, ctx.oidc.client, ctx.oidc.params));
    provider.use(async (ctx, next) => {
      await next();
      if (ctx.oidc?.route === 'introspection') this.introspections += 1;
    });
    this.#provider = provider;
  }

  #note(kind, client, params) {
    this.granted.push({ kind, client: client.clientName ?? client.clientId, params: { ...params } });
  }

  #configuration(kid) {
    const machine = { redirect_uris: [], response_types: [] };
    return {
      jwks: { keys: [signingKey(kid)] },
      cookies: { keys: [secret()] },
      clients: [
        { ...this.robot, ...machine, grant_types: ['client_credentials'] },
        { ...this.gateway, ...machine, grant_types: [] },
      ],
      clientDefaults: { id_token_signed_response_alg: 'ES256' },
      scopes: ['openid', 'mcp:use', 'mcp:write'],
      enabledJWA: { idTokenSigningAlgValues: ['ES256'] },
      fetch: fetchOverridden,
      findAccount: (_ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
      features: {
        clientCredentials: { enabled: true },
        introspection: { enabled: true, allowedPolicy: (_ctx, client) => client.clientId === this.gateway.client_id },
        revocation: { enabled: true, allowedPolicy: () => true },
        registration: { enabled: true },
        clientIdMetadataDocument: { enabled: true, ack: 'draft-02' },
        resourceIndicators: {
          enabled: true,
          getResourceServerInfo: (_ctx, resource) => this.#resource(resource),
        },
      },
      issueRefreshToken: (_ctx, client) => client.grantTypeAllowed('refresh_token'),
      // A client may refresh twice at once, for a call and for its stream.
      rotateRefreshToken: false,
      ttl: { AccessToken: (ctx) => this.#lifetime(ctx), ClientCredentials: 3600, RefreshToken: 3600, Grant: 3600, Session: 3600, Interaction: 600 },
    };
  }

  #resource(resource) {
    const scope = this.#resources.get(resource);
    if (scope === undefined) throw new errors.InvalidTarget();
    return { scope, audience: resource, accessTokenFormat: this.#format, jwt: { sign: { alg: 'ES256' } } };
  }

  /** Short for the first token a client is given, so that it has to refresh. */
  #lifetime(ctx) {
    const client = ctx.oidc.client.clientId;
    const first = !this.#served.has(client);
    this.#served.add(client);
    return first && !client.startsWith(CLIENT_DOCUMENTS) ? SHORT_S : 3600;
  }

  /** A request to one of its endpoints in the name of a confidential client: status and JSON body. */
  async post(endpoint, client, params) {
    const basic = Buffer.from(`${client.client_id}:${client.client_secret}`).toString('base64');
    const response = await fetch(`${this.issuer}/${endpoint}`, {
      method: 'POST', body: new URLSearchParams(params), headers: { authorization: `Basic ${basic}` },
    });
    const text = await response.text();
    return { status: response.status, body: text && JSON.parse(text) };
  }

  /** An access token of the robot's own for a resource, or for none. */
  async token(resource, scope = 'mcp:use') {
    const asked = { grant_type: 'client_credentials', ...(resource && { resource, scope }) };
    const { status, body } = await this.post('token', this.robot, asked);
    if (status !== 200) throw new Error(`no token for ${resource}: ${JSON.stringify(body)}`);
    return body.access_token;
  }

  /** Ends it: from now on nobody answers. */
  stop() {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}
