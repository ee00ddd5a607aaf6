// The gateway's presets against tokens as the authorization servers of five vendors make them. The vendors themselves are
// not here: npm's oauth2-mock-server signs what each of them would say, field by field.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { OAuth2Server } from 'oauth2-mock-server';
import { call, open, refused } from './caller.mjs';
import { explained } from './operator.mjs';

const CLIENT = '0oa5f3k2client';
const TENANT = '8a1f0c52-5f1e-4a57-9b39-3f6f2f6f6c11';
const API = '3c9d6bd2-7a55-4d0e-8f0e-2f5a7c0c8d01'; // the application that stands for the gateway
const now = () => Math.floor(Date.now() / 1000);

/** Claims that are dropped from what the mock server would say by itself. */
const bare = { nbf: undefined, amr: undefined, scope: undefined, aud: undefined };

/**
 * For each vendor: the `path` of its issuer, `settings` of `[auth.issuers]`, the `scopes` asked for, and tokens that are
 * taken (`good`) or refused (`bad`), each as a function from the resource and the issuer to claims over `common`; a
 * refused one with the check that it fails.
 */
const VENDORS = {
  keycloak: {
    path: '/realms/company',
    scopes: ['mcp:use'],
    common: () => ({
      ...bare, jti: randomUUID(), sub: randomUUID(), typ: 'Bearer', azp: CLIENT, sid: randomUUID(), acr: '1', 'allowed-origins': ['*'],
      realm_access: { roles: ['offline_access', 'uma_authorization'] }, preferred_username: 'ada', scope: 'openid profile email mcp:use',
    }),
    good: {
      'with-mapper': (resource) => ({ aud: resource }),
      'with-mapper-and-account': (resource) => ({ aud: [resource, 'account'] }),
    },
    bad: {
      'without-mapper': ['aud', () => ({})],
      'for-account-only': ['aud', () => ({ aud: 'account' })],
      'id-token': ['typ', (resource) => ({ typ: 'ID', aud: resource, at_hash: 'xsZZrUssMXjL3FBlzoSh2g' })],
    },
  },
  entra: {
    path: `/${TENANT}/v2.0`,
    settings: `audiences = ["${API}"]\nscope_prefix = "api://${API}/"\n`,
    scopes: ['mcp.use'],
    asked: `api://${API}/mcp.use`,
    common: () => ({
      ...bare, aud: API, azp: CLIENT, azpacr: '0', oid: randomUUID(), sub: 'PAIRWISE-subject', tid: TENANT, uti: 'abc', ver: '2.0',
      name: 'Ada', preferred_username: 'ada@company.example', rh: '0.AAAA',
    }),
    good: {
      user: () => ({ scp: 'mcp.use profile' }),
      application: () => ({ roles: ['mcp.use'], idtyp: 'app', azpacr: '1', name: undefined, preferred_username: undefined }),
    },
    bad: {
      'v1-token': ['iss', (_resource, issuer) => ({ iss: issuer.replace(/\/v2\.0$/, '/'), aud: `api://${API}`, ver: '1.0', appid: CLIENT, scp: 'mcp.use' })],
      'for-graph': ['aud', () => ({ aud: '00000003-0000-0000-c000-000000000000', scp: 'User.Read' })],
      'id-token': ['kind', () => ({ aud: CLIENT, nonce: 'n-0S6_WzA2Mj' })],
    },
  },
  auth0: {
    path: '/',
    scopes: ['mcp:use'],
    common: (resource, issuer) => ({
      ...bare, sub: 'auth0|65f0c0ffee', aud: [resource, `${issuer}userinfo`], azp: CLIENT, scope: 'openid profile mcp:use', permissions: [],
    }),
    good: {
      scope: () => ({}),
      permissions: () => ({ scope: 'openid profile', permissions: ['mcp:use', 'mcp:write'] }),
      machine: (resource) => ({ sub: `${CLIENT}@clients`, aud: resource, gty: 'client-credentials', scope: 'mcp:use' }),
    },
    bad: {
      'userinfo-only': ['aud', (_resource, issuer) => ({ aud: `${issuer}userinfo` })],
      'issuer-without-slash': ['iss', (_resource, issuer) => ({ iss: issuer.slice(0, -1) })],
      'id-token': ['kind', () => ({ aud: CLIENT, nonce: 'n-0S6_WzA2Mj', scope: undefined })],
    },
  },
  okta: {
    path: '/oauth2/default',
    settings: 'audiences = ["api://default"]\n',
    scopes: ['mcp:use'],
    common: () => ({ ...bare, ver: 1, jti: `AT.${randomUUID()}`, aud: 'api://default', cid: CLIENT, uid: '00u1ada', sub: 'ada@company.example', auth_time: now() }),
    good: {
      user: () => ({ scp: ['openid', 'mcp:use'] }),
      machine: () => ({ scp: ['mcp:use'], sub: CLIENT, uid: undefined }),
    },
    bad: {
      'org-server-token': ['iss', (_resource, issuer) => ({ iss: new URL(issuer).origin, aud: new URL(issuer).origin, scp: ['openid'] })],
      'id-token': ['kind', () => ({ aud: CLIENT, at_hash: 'xsZZrUssMXjL3FBlzoSh2g', jti: `ID.${randomUUID()}` })],
    },
  },
  cognito: {
    path: '/eu-central-1_Company1',
    settings: `audiences = ["${CLIENT}"]\n`,
    scopes: ['gangway/mcp.use'],
    common: () => ({
      ...bare, sub: randomUUID(), 'cognito:groups': ['staff'], token_use: 'access', client_id: CLIENT, version: 2, auth_time: now(),
      jti: randomUUID(), origin_jti: randomUUID(), event_id: randomUUID(), username: 'ada', scope: 'openid gangway/mcp.use',
    }),
    good: { user: () => ({}), machine: () => ({ sub: CLIENT, username: undefined, scope: 'gangway/mcp.use' }) },
    bad: {
      'another-client': ['client_id', () => ({ client_id: '1example23456789' })],
      'id-token': ['token_use', () => ({ aud: CLIENT, client_id: undefined, token_use: 'id', 'cognito:username': 'ada' })],
    },
  },
};

/** Whose tokens there are. */
export const NAMES = Object.keys(VENDORS);

/** One vendor's authorization server on a free port. */
export class Vendor {
  #server;
  #token;

  static async start(name) {
    const started = new Vendor();
    Object.assign(started, VENDORS[name], { name });
    const wellKnown = `${started.path === '/' ? '' : started.path}/.well-known/openid-configuration`;
    const server = new OAuth2Server(undefined, undefined, { endpoints: { wellKnownDocument: wellKnown } });
    await server.issuer.keys.generate('RS256');
    await server.start(0, '127.0.0.1');
    const origin = `http://127.0.0.1:${server.address().port}`;
    server.issuer.url = started.issuer = origin + started.path;
    server.service.on('beforeWellKnownOpenIdConfiguration', ({ body }) => {
      body.jwks_uri = `${origin}/jwks`;
      body.token_endpoint = `${origin}/token`;
    });
    server.service.on('beforeTokenSigning', ({ payload }) => Object.assign(payload, started.#token));
    started.#server = server;
    started.#token = {};
    return started;
  }

  /** `[auth.issuers]` and the server that takes its tokens, as TOML. */
  issuerTable() {
    return `[auth.issuers.${this.name}]\nprovider = "${this.name}"\nissuer = "${this.issuer}"\n${this.settings ?? ''}`;
  }

  serverTable() {
    return `[servers.${this.name}.auth]\nissuers = ["${this.name}"]\nscopes = ${JSON.stringify(this.scopes)}\n`;
  }

  /** An access token with these claims over what all of this vendor's have. */
  async token(resource, claims) {
    this.#token = { ...this.common(resource, this.issuer), ...claims(resource, this.issuer) };
    const response = await fetch(new URL('/token', this.issuer), {
      method: 'POST', body: new URLSearchParams({ grant_type: 'client_credentials', scope: 'openid' }),
    });
    return (await response.json()).access_token;
  }

  /** Steps: each good token opens a session and calls, each bad one is refused, and `configuration` explains why. */
  steps(resource, configuration) {
    const good = Object.entries(this.good).map(([what, claims]) => [`${this.name}-${what}`, async () => {
      const token = await this.token(resource, claims);
      const session = await open(resource, token);
      assert.equal((await call(resource, token, session, 'echo')).status, 200);
      await explained(configuration, this.name, token);
    }]);
    const bad = Object.entries(this.bad).map(([what, [check, claims]]) => [`${this.name}-${what}`, async () => {
      const token = await this.token(resource, claims);
      await refused(resource, token, `scope="${this.asked ?? this.scopes[0]}"`);
      await explained(configuration, this.name, token, check);
    }]);
    return [...good, ...bad];
  }

  stop() {
    return this.#server.stop();
  }
}
