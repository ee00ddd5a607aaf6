// The gateway with oidc-provider: JWTs and opaque tokens with resource indicators, metadata, rotation, an outage.
import assert from 'node:assert/strict';
import { until } from '../clients/steps.mjs';
import { call, open, post, refused } from './caller.mjs';
import { explained, online } from './operator.mjs';

/** Steps with `jwt` and `opaque`, each an authorization server and the resource the gateway serves for it by `configuration`. */
export function providerSteps(jwt, opaque, configuration) {
  const unknown = new URL('/unknown/mcp', jwt.resource).href;
  let session;
  return [
    ['metadata', async () => {
      const { status, challenge } = await post(jwt.resource, undefined, { id: 1, method: 'ping' });
      assert.equal(status, 401);
      assert.doesNotMatch(challenge, /error=/);
      assert.match(challenge, /scope="mcp:use"/);
      const place = /resource_metadata="([^"]+)"/.exec(challenge)[1];
      const document = await (await fetch(place)).json();
      assert.equal(document.resource, jwt.resource);
      assert.deepEqual(document.authorization_servers, [jwt.server.issuer]);
      assert.deepEqual(document.scopes_supported, ['mcp:use']);
      const found = await fetch(`${document.authorization_servers[0]}/.well-known/oauth-authorization-server`);
      assert.equal((await found.json()).issuer, jwt.server.issuer);
    }],
    ['check-online', async () => {
      const said = await online(configuration);
      const issuers = said.split(/^issuer /m).slice(1);
      assert.equal(issuers.length, 2, said);
      for (const about of issuers) {
        assert.match(about, /registration +client id metadata documents and dynamic registration/);
        assert.match(about, /S256 +named/);
      }
      assert.match(issuers[0], /keys +1\n/);
    }],
    ['jwt', async () => {
      const token = await jwt.server.token(jwt.resource);
      session = await open(jwt.resource, token);
      assert.equal((await call(jwt.resource, token, session, 'echo')).status, 200);
    }],
    ['jwt-scope', async () => {
      const token = await jwt.server.token(jwt.resource);
      const { status, challenge } = await call(jwt.resource, token, session, 'update_resource');
      assert.equal(status, 403);
      assert.match(challenge, /error="insufficient_scope"/);
      assert.match(challenge, /scope="mcp:use mcp:write"/);
      assert.match(challenge, /resource_metadata="/);
      const wider = await jwt.server.token(jwt.resource, 'mcp:use mcp:write');
      assert.equal((await call(jwt.resource, wider, session, 'update_resource')).status, 200);
    }],
    ['jwt-without-scope', async () => {
      const token = await jwt.server.token(jwt.resource, 'mcp:write');
      const { status, challenge } = await call(jwt.resource, token, session, 'echo');
      assert.equal(status, 403);
      assert.match(challenge, /scope="mcp:use mcp:write"/);
    }],
    ['unknown-resource', async () => {
      const { status, body } = await jwt.server.post('token', jwt.server.robot, { grant_type: 'client_credentials', resource: unknown });
      assert.deepEqual([status, body.error], [400, 'invalid_target']);
    }],
    ['another-resource', async () => {
      jwt.server.serve(unknown, 'mcp:use');
      const token = await jwt.server.token(unknown);
      await refused(jwt.resource, token);
      await explained(configuration, 'jwt', token, 'aud');
    }],
    ['no-resource', async () => refused(jwt.resource, await jwt.server.token())],
    ['opaque', async () => {
      const token = await opaque.server.token(opaque.resource);
      assert.ok(!token.includes('.'), 'the token is a JWT');
      const opened = await open(opaque.resource, token);
      assert.equal((await call(opaque.resource, token, opened, 'echo')).status, 200);
      assert.ok(opaque.server.introspections > 0, 'nobody asked what the token means');
      await explained(configuration, 'opaque', token);
    }],
    ['opaque-another-resource', async () => {
      opaque.server.serve(unknown, 'mcp:use');
      await refused(opaque.resource, await opaque.server.token(unknown));
    }],
    ['opaque-unknown', () => refused(opaque.resource, 'nobodys-token')],
    ['opaque-revoked', async () => {
      const token = await opaque.server.token(opaque.resource);
      await open(opaque.resource, token);
      const { status } = await opaque.server.post('token/revocation', opaque.server.robot, { token });
      assert.equal(status, 200);
      await refused(opaque.resource, token);
    }],
    ['of-the-other-issuer', async () => {
      await refused(opaque.resource, await jwt.server.token(jwt.resource));
      await refused(jwt.resource, await opaque.server.token(opaque.resource));
    }],
    ['rotation', async () => {
      const old = await jwt.server.token(jwt.resource);
      assert.equal((await call(jwt.resource, old, session, 'echo')).status, 200);
      jwt.server.rotate('second');
      const fresh = await jwt.server.token(jwt.resource);
      assert.equal((await call(jwt.resource, fresh, session, 'echo')).status, 200, 'a token with the new key');
      await refused(jwt.resource, old);
    }],
    ['outage', async () => {
      const token = await opaque.server.token(opaque.resource);
      const opened = await open(opaque.resource, token);
      opaque.server.stop();
      let status;
      const ask = async () => ({ status } = await call(opaque.resource, token, opened, 'echo'));
      let asked;
      await until(() => `503 while the issuer is away but ${status}`, () => {
        asked ??= ask().finally(() => { asked = undefined; });
        return status === 503;
      });
      const known = await jwt.server.token(jwt.resource);
      assert.equal((await call(jwt.resource, known, session, 'echo')).status, 200, 'the other issuer');
    }],
  ];
}
