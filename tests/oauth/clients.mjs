// The official SDKs log a user in at the authorization server and use a session behind the gateway.
import assert from 'node:assert/strict';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { runProgram } from '../clients/program.mjs';
import { NODE } from '../gateway.mjs';
import { CLIENT_DOCUMENTS } from './authorization-server.mjs';

const HERE = path.dirname(fileURLToPath(import.meta.url));

const python = (version) => [path.join(HERE, `../.setup/python-${version}/bin/python`), '-B', '-W', 'ignore', path.join(HERE, `python_${version}.py`)];
const CLIENTS = {
  'typescript-1': [NODE, path.join(HERE, 'typescript-1.mjs')],
  'typescript-2': [NODE, path.join(HERE, 'typescript-2.mjs')],
  'python-1': python(1),
  'python-2': python(2),
};

/** Checks what the authorization server heard of a client: every promise of the SDK that the gateway cannot see. */
function heard(server, name, resource) {
  const of = (kind) => server.granted.filter((grant) => grant.client === name && grant.kind === kind).map(({ params }) => params);
  const logins = of('authorize');
  const codes = of('authorization_code');
  assert.equal(of('register').length, 1, 'registrations');
  assert.deepEqual(logins.map(({ scope }) => scope.split(' ').sort()), [['mcp:use'], ['mcp:use', 'mcp:write'], ['mcp:use']], 'scopes of the logins');
  assert.equal(logins[2].client_id, `${CLIENT_DOCUMENTS}${name}`);
  assert.equal(codes.length, 3, 'codes redeemed');
  assert.ok(of('refresh_token').length >= 1, 'never refreshed');
  for (const asked of [...logins, ...codes, ...of('refresh_token')]) assert.equal(asked.resource, resource, 'resource');
  for (const { code_challenge_method: method, state } of logins) assert.ok(method === 'S256' && state, 'a login without S256 or state');
  for (const { code_verifier: verifier } of codes) assert.ok(verifier, 'a code without its verifier');
}

/** Runs every client at once against `resource`: steps for `report`, one for what was heard of each, and the counts so far. */
export async function runClients(server, resource, browser) {
  const outcomes = await Promise.all(Object.entries(CLIENTS).map(([name, command]) => runProgram(name, [...command, resource, browser])));
  const steps = Object.keys(CLIENTS).map((name) => [`${name}-as-heard`, async () => heard(server, name, resource)]);
  const sum = (key) => outcomes.reduce((total, outcome) => total + outcome[key], 0);
  return { steps, passed: sum('passed'), failed: sum('failed') };
}
