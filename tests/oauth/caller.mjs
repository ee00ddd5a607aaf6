// A caller with a token of its own: no SDK that would do anything about a refusal.
import assert from 'node:assert/strict';

const REVISION = '2025-11-25';

/** Posts a message to the server at `url`: `{ status, challenge, session, body }`, the body as text. */
export async function post(url, token, message, session) {
  const response = await fetch(url, {
    method: 'POST',
    headers: {
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
      ...(token && { authorization: `Bearer ${token}` }),
      ...(session && { 'mcp-session-id': session, 'mcp-protocol-version': REVISION }),
    },
    body: JSON.stringify({ jsonrpc: '2.0', ...message }),
  });
  const { headers, status } = response;
  return { status, challenge: headers.get('www-authenticate'), session: headers.get('mcp-session-id'), body: await response.text() };
}

const INITIALIZE = {
  id: 1,
  method: 'initialize',
  params: { protocolVersion: REVISION, capabilities: {}, clientInfo: { name: 'caller', version: '1' } },
};

/** Opens a session with a token that has to be good; gives its id. */
export async function open(url, token) {
  const { status, challenge, session } = await post(url, token, INITIALIZE);
  assert.equal(status, 200, `initialize: ${challenge}`);
  return session;
}

/** Calls a tool; gives the answer to the POST. */
export function call(url, token, session, name) {
  return post(url, token, { id: 2, method: 'tools/call', params: { name, arguments: { text: 'x' } } }, session);
}

/** A token that has to be refused as invalid; the challenge has to have `part`. */
export async function refused(url, token, part = 'resource_metadata="') {
  const { status, challenge } = await post(url, token, INITIALIZE);
  assert.equal(status, 401, `a bad token is answered with ${status}`);
  assert.match(challenge, /^Bearer .*error="invalid_token"/);
  assert.ok(challenge.includes(part), `no ${part} in ${challenge}`);
}
