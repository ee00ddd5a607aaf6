// What an operator types: commands of the gateway's that look at a configuration or at a token.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { BINARY, spawnTracked } from '../gateway.mjs';

const DOCS = path.join(path.dirname(fileURLToPath(import.meta.url)), '../../docs');

/** Runs a command with `FILE` in its arguments standing for a file of this text: `{ status, said }`. */
async function type(configuration, args, input = '') {
  const folder = mkdtempSync(path.join(tmpdir(), 'gangway-oauth-'));
  const file = path.join(folder, 'gangway.toml');
  writeFileSync(file, configuration);
  const child = spawnTracked(BINARY, args.map((arg) => (arg === 'FILE' ? file : arg)));
  let said = '';
  for (const output of [child.stdout, child.stderr]) output.on('data', (bytes) => { said += bytes; });
  child.stdin.on('error', () => {}).end(input);
  const [status] = await once(child, 'close');
  rmSync(folder, { recursive: true });
  return { status, said };
}

/** Has a token explained for a server: the last verdict has to be `let in`, or this failed check. */
export async function explained(configuration, server, token, failed) {
  const { status, said } = await type(configuration, ['auth', 'explain', '-c', 'FILE', '--server', server], token);
  assert.equal(status, failed ? 1 : 0, said);
  assert.match(said, failed ? new RegExp(`^ *FAIL +${failed} `, 'm') : /^let in as /m);
  assert.doesNotMatch(said, new RegExp(token.slice(-20)), 'the token is shown');
}

/** Asks the issuers of a configuration what they offer; gives what is said. */
export async function online(configuration) {
  const { status, said } = await type(configuration, ['check', 'FILE', '--online']);
  assert.equal(status, 0, said);
  return said;
}

/** Steps: the configuration on each of these pages of the documentation is one. */
export function pageSteps(...pages) {
  return pages.map((page) => [`page-${page}`, async () => {
    const [, text] = readFileSync(path.join(DOCS, `oauth-${page}.md`), 'utf8').split('```toml\n');
    const { status, said } = await type(text.split('```')[0], ['check', 'FILE']);
    assert.equal(status, 0, said);
  }]);
}
