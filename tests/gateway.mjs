// Starts and ends what the outer tests talk to. Every process is a child of the test run and is killed with it.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const TESTS = path.dirname(fileURLToPath(import.meta.url));

/** The pinned Node of tests/setup; also the command of every child written for Node. */
export const NODE = path.join(TESTS, '.setup/node');

/** Cargo's build directory, as an absolute path: the gateway resolves relative ones against its configuration file. */
export const BUILD = path.resolve(process.env.CARGO_TARGET_DIR ?? path.join(TESTS, '../target'));

/** Where logs and results of a run stay for a look afterwards. */
export const RESULTS = path.join(BUILD, 'outer-tests');

/** The program under test, as `cargo build` leaves it or as GANGWAY_BIN names it. */
export const BINARY = process.env.GANGWAY_BIN ?? path.join(BUILD, 'debug/gangway');

const START_LIMIT_MS = 60_000;
const STOP_LIMIT_MS = 30_000;

const running = new Set();
process.on('exit', () => running.forEach((child) => child.kill('SIGKILL')));
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => process.exit(1));

/** `spawn` whose process does not outlive this one. */
export function spawnTracked(command, args, options) {
  const child = spawn(command, args, options);
  running.add(child);
  child.once('exit', () => running.delete(child));
  return child;
}

/** Resolves with the exit code, or with the signal's name; kills the child when that takes too long. */
async function stop(child) {
  if (child.exitCode === null && child.signalCode === null) {
    const limit = setTimeout(() => child.kill('SIGKILL'), STOP_LIMIT_MS);
    const exited = once(child, 'exit');
    child.kill('SIGTERM');
    await exited;
    clearTimeout(limit);
  }
  return child.exitCode ?? child.signalCode;
}

/** The last lines of a log, for the report of a failure. */
export function tail(file, lines = 30) {
  return readFileSync(file, 'utf8').trimEnd().split('\n').slice(-lines).join('\n');
}

/** `listen` on a free loopback port, no admin listener and no pause before a drain, then `servers` as TOML text. */
export function configuration(servers, settings = '') {
  return `[listen]\naddress = "127.0.0.1:0"\n\n[admin]\naddress = "off"\n\n[drain]\nprestop = "0s"\n\n${settings}\n${servers}\n`;
}

/** One `[servers.NAME]` table. JSON's strings and string arrays are TOML's too; a `$` is written twice, since one begins a variable. */
export function server(name, command, args) {
  const toml = (value) => JSON.stringify(value).replaceAll('$', '$$$$');
  return `[servers.${name}]\ncommand = ${toml(command)}\nargs = ${toml(args)}\n`;
}

/**
 * Runs `gangway serve` on a configuration text until its `ready` line.
 *
 * Gives `url(NAME)`, the `admin` address, `signal(NAME)`, `ended`, a promise of the exit code or the signal's name, and
 * `stop()`, which drains it and throws unless it exits with status 0. `log` names the file below RESULTS that keeps
 * everything the gateway wrote; `env` holds variables beside our own.
 */
export async function startGateway(config, log, env = {}) {
  mkdirSync(RESULTS, { recursive: true });
  const folder = mkdtempSync(path.join(tmpdir(), 'gangway-outer-'));
  const file = path.join(folder, 'gangway.toml');
  writeFileSync(file, config);
  const logFile = path.join(RESULTS, log);
  const logDescriptor = openSync(logFile, 'w');
  const child = spawnTracked(BINARY, ['serve', '-c', file], { stdio: ['ignore', 'inherit', 'pipe'], env: { ...process.env, ...env } });
  const failed = once(child, 'error').then(([error]) => {
    throw new Error(`${BINARY} does not start: ${error.message}. Build it with cargo build, or set GANGWAY_BIN`);
  });
  const closed = once(child, 'close').then(() => {
    closeSync(logDescriptor);
    rmSync(folder, { recursive: true });
  });

  const ready = new Promise((resolve, reject) => {
    createInterface({ input: child.stderr }).on('line', (line) => {
      writeFileSync(logDescriptor, `${line}\n`);
      if (!line.includes('"ready"')) return;
      const event = JSON.parse(line);
      if (event.event === 'ready') resolve(event);
    });
    closed.then(() => reject(new Error(`gangway ended before it was ready (${logFile}):\n${tail(logFile)}`)), reject);
    delay(START_LIMIT_MS, undefined, { ref: false }).then(() => reject(new Error(`gangway is not ready after ${START_LIMIT_MS} ms; see ${logFile}`)));
  });
  const { listen, admin } = await Promise.race([ready, failed]);
  const [address] = [listen].flat();
  return {
    url: (name) => `http://${address}/${name}/mcp`,
    admin,
    signal: (name) => child.kill(name),
    ended: closed.then(() => child.exitCode ?? child.signalCode),
    async stop() {
      const status = await stop(child);
      await closed;
      if (status !== 0) throw new Error(`gangway ended with ${status} instead of 0 (${logFile}):\n${tail(logFile)}`);
    },
  };
}

/** The conformance fixture served by its SDK without a gateway: `url()` and `stop()`. */
export async function startDirect() {
  const child = spawnTracked(NODE, [path.join(TESTS, 'conformance/direct.mjs')], { stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = once(child, 'exit').then(([code]) => {
    throw new Error(`direct.mjs ended with ${code} before it served`);
  });
  const [url] = await Promise.race([once(createInterface({ input: child.stdout }), 'line'), ended]);
  ended.catch(() => {}); // from here on its end is ours
  return { url: () => url, stop: () => stop(child) };
}
