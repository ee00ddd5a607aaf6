// Runs the five official client SDKs through the gateway and prints which step of which client passed. Behind the
// gateway is its built-in demo server, one configured server for each client; a last client uses two servers that other
// people wrote.
//
//   node run.mjs [gateway | direct | URL] [CLIENT…]     default: the gateway and every client
//
// "direct" is the conformance fixture served by its own SDK. What fails there is not the gateway's fault: the fixture
// parses numbers as doubles, so `integers` fails there for the clients that have larger ones.
//
// Ends with "clients: N passed, N failed" on a line; exit status 0 only when nothing failed.
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { BINARY, BUILD, configuration, NODE, RESULTS, server, spawnTracked, startDirect, startGateway } from '../gateway.mjs';

const HERE = path.dirname(fileURLToPath(import.meta.url));
const CLIENT_LIMIT_MS = 180_000;

const python = (version) => path.join(HERE, `../.setup/python-${version}/bin/python`);
const script = (name) => path.join(HERE, name);
const CLIENTS = {
  'typescript-1': [NODE, script('typescript-1.mjs')],
  'typescript-2': [NODE, script('typescript-2.mjs')],
  'python-1': [python(1), '-B', '-W', 'ignore', script('python_1.py')],
  'python-2': [python(2), '-B', '-W', 'ignore', script('python_2.py')],
  rmcp: [path.join(BUILD, 'debug/rmcp-client')],
};

/** A step that no client can judge: whether the server itself was told of the cancelled call. */
const HEARD = 'cancel-heard';

const REAL_SERVERS = [
  server('everything', NODE, [script('../node_modules/@modelcontextprotocol/server-everything/dist/index.js'), 'stdio']),
  server('time', python(2), ['-m', 'mcp_server_time', '--local-timezone', 'UTC']),
];

/** The demo server with a copy of all it reads, a file for each process, in `folder`. */
function tappedDemo(name, folder) {
  return server(name, 'sh', ['-c', 'tee "$0/$$" | "$1" demo-server', folder, BINARY]);
}

/** Whether a process whose input is in `folder` was told that its endless `slow` call, by that call's id, is cancelled. */
function heardCancel(folder) {
  return readdirSync(folder).some((file) => {
    const lines = readFileSync(path.join(folder, file), 'utf8').split('\n').filter(Boolean).map((line) => JSON.parse(line));
    const call = lines.find(({ params }) => params?.name === 'slow' && params.arguments.seconds === 600);
    return call && lines.some(({ method, params }) => method === 'notifications/cancelled' && params.requestId === call.id);
  });
}

/** Runs one client to its end: a map from step to why it failed, or to undefined when it passed. */
async function runClient([command, ...args], urls) {
  if (!existsSync(command)) throw new Error(`${command} is missing; run tests/run clients, which builds and installs it`);
  const client = spawnTracked(command, [...args, ...urls], { stdio: ['ignore', 'pipe', 'inherit'], timeout: CLIENT_LIMIT_MS });
  const steps = new Map();
  createInterface({ input: client.stdout }).on('line', (line) => {
    const [, outcome, step, why] = /^(ok|FAIL) ([\w-]+)(?:: (.*))?$/.exec(line) ?? [];
    if (outcome) steps.set(step, outcome === 'ok' ? undefined : (why ?? 'failed'));
    else console.log(`  ${line}`);
  });
  const [status, signal] = await once(client, 'close');
  const failed = [...steps.values()].some((why) => why !== undefined);
  // A client that dies, or says nothing, has failed whatever its last words were.
  if (steps.size === 0 || signal || (status !== 0) !== failed) steps.set('exit', `ended with ${signal ?? status}`);
  return steps;
}

function printMatrix(results) {
  const names = [...results.keys()];
  const fullest = [...results.values()].sort((one, other) => other.size - one.size);
  const steps = [...new Set(fullest.flatMap((outcome) => [...outcome.keys()]))];
  const cell = (outcome, step) => (outcome.has(step) ? (outcome.get(step) === undefined ? 'ok' : 'FAIL') : '-');
  console.log(`\n  ${'step'.padEnd(14)}${names.map((name) => name.padEnd(14)).join('')}`.trimEnd());
  for (const step of steps) {
    const row = names.map((name) => cell(results.get(name), step).padEnd(14)).join('');
    console.log(`  ${step.padEnd(14)}${row}`.trimEnd());
  }
  printFailures(results);
}

function printFailures(results) {
  for (const [name, outcome] of results) {
    for (const [step, why] of outcome) if (why !== undefined) console.log(`  ${name} ${step}: ${why}`);
  }
}

async function startTarget(target, names, taps) {
  if (target === 'direct') return startDirect();
  if (target !== 'gateway') return { url: () => target, stop: async () => {} };
  const demos = names.map((name) => tappedDemo(name, taps.get(name)));
  return startGateway(configuration([...demos, ...REAL_SERVERS].join('\n')), 'clients-gateway.log');
}

const [target = 'gateway', ...chosen] = process.argv.slice(2);
const names = chosen.length ? chosen : Object.keys(CLIENTS);
const stranger = names.find((name) => !(name in CLIENTS));
if (stranger) {
  console.error(`no such client: ${stranger} (${Object.keys(CLIENTS).join(', ')})`);
  process.exit(2);
}

const taps = new Map(names.map((name) => [name, path.join(RESULTS, 'input', name)]));
for (const folder of taps.values()) {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
}
const served = await startTarget(target, names, taps);
const results = new Map();
for (const name of names) {
  const outcome = await runClient(CLIENTS[name], [served.url(name)]);
  if (target === 'gateway') outcome.set(HEARD, heardCancel(taps.get(name)) ? undefined : 'the server was not told');
  results.set(name, outcome);
}
console.log(`\nclients, ${target}`);
printMatrix(results);
if (target === 'gateway') {
  const outcome = await runClient([NODE, script('real-servers.mjs')], [served.url('everything'), served.url('time')]);
  for (const [step, why] of outcome) console.log(`  ${why === undefined ? 'ok  ' : 'FAIL'} ${step} ${why ?? ''}`.trimEnd());
  results.set('real-servers', outcome);
}
try {
  await served.stop();
} catch (error) {
  results.set('gateway', new Map([['drain', error.message]]));
  console.log(`  FAIL drain: ${error.message}`);
}

const outcomes = [...results.values()].flatMap((outcome) => [...outcome.values()]);
const failed = outcomes.filter((why) => why !== undefined).length;
console.log(`clients: ${outcomes.length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
