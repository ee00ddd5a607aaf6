// Runs other people's programs on the files in deploy/, with our addresses in place of those that stand there.
import { execFile } from 'node:child_process';
import { generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer as createHttpServer } from 'node:http';
import { connect, createServer } from 'node:net';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { until } from '../clients/steps.mjs';
import { RESULTS, spawnTracked, tail } from '../gateway.mjs';

const SHIPPED = path.join(path.dirname(fileURLToPath(import.meta.url)), '../../deploy');
export const run = promisify(execFile);

/** The only block in the language `language` of a page of the documentation. */
export function block(page, language) {
  const [, text, ...more] = readFileSync(path.join(SHIPPED, '../docs', page), 'utf8').split(`\`\`\`${language}\n`);
  if (!text || more.length) throw new Error(`docs/${page} has not one block of ${language}`);
  return text.split('```')[0];
}

/** Writes a file, the shipped one of this name unless there is a `text`, into `folder`, each key of `changes` replaced everywhere; one that is not there is an error. */
export function adapt(name, folder, changes, text = readFileSync(path.join(SHIPPED, name), 'utf8')) {
  for (const [from, to] of Object.entries(changes)) {
    if (!text.includes(from)) throw new Error(`${name} has no ${from} any more`);
    text = text.replaceAll(from, to);
  }
  const file = path.join(folder, name);
  writeFileSync(file, text);
  return file;
}

/** So many loopback ports that were free a moment ago. */
export async function freePorts(count) {
  const servers = Array.from({ length: count }, () => createServer().listen(0, '127.0.0.1'));
  await Promise.all(servers.map((server) => once(server, 'listening')));
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => once(server.close(), 'close')));
  return ports;
}

function accepts(port) {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => resolve(true)).once('error', () => resolve(false));
    socket.once('connect', () => socket.destroy());
  });
}

/** Starts a program and waits until it accepts connections on `port`; what it says goes to a log in RESULTS. */
export async function start(command, args, port) {
  mkdirSync(RESULTS, { recursive: true });
  const log = path.join(RESULTS, `deploy-${path.basename(command)}-${port}.log`);
  const output = openSync(log, 'w');
  const child = spawnTracked(command, args, { stdio: ['ignore', output, output] });
  let listening = false;
  const ask = async () => {
    while (!listening && child.exitCode === null) listening = await accepts(port);
  };
  const asked = ask();
  await until(() => `${command} on port ${port} (${log}):\n${tail(log)}`, () => listening || child.exitCode !== null);
  await asked;
  if (!listening) throw new Error(`${command} ended with ${child.exitCode} (${log}):\n${tail(log)}`);
  return child;
}

/** A certificate for `host`, signed by itself: `{ crt, key, pem }`, the files' paths. */
export async function certificate(host, folder) {
  const [crt, key, pem] = ['crt', 'key', 'pem'].map((end) => path.join(folder, `certificate.${end}`));
  await run('openssl', [
    'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '1',
    '-subj', `/CN=${host}`, '-addext', `subjectAltName=DNS:${host}`, '-keyout', key, '-out', crt,
  ]);
  writeFileSync(pem, readFileSync(crt, 'utf8') + readFileSync(key, 'utf8'));
  return { crt, key, pem };
}

/** Starts nginx on the shipped file, or on `text`, in the smallest configuration that can include it; one process, which leaves no other behind. */
export async function startNginx(parent, changes, port, text) {
  const folder = mkdtempSync(path.join(parent, 'nginx-'));
  const file = adapt('nginx.conf', folder, changes, text);
  const user = process.getuid() === 0 ? 'user root;\n' : '';
  const main = path.join(folder, 'main.conf');
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map((kind) => `${kind}_temp_path ${folder}/${kind};`);
  writeFileSync(main, `${user}daemon off;\nmaster_process off;\npid ${folder}/nginx.pid;\nerror_log stderr;
events { worker_connections 512; }
http { access_log off; ${temporary.join(' ')} include ${file}; }\n`);
  await run('nginx', ['-t', '-q', '-p', folder, '-c', main]);
  return start('nginx', ['-p', folder, '-c', main], port);
}

/** Starts HAProxy on the shipped file. */
export async function startHaproxy(folder, changes, port) {
  const file = adapt('haproxy.cfg', folder, changes);
  await run('haproxy', ['-c', '-q', '-f', file]);
  return start('haproxy', ['-db', '-f', file], port);
}

/** Starts Caddy on the shipped file; it takes up no port but `port`. */
export async function startCaddy(folder, changes, port) {
  const file = adapt('Caddyfile', folder, changes);
  const options = ['--config', file, '--adapter', 'caddyfile'];
  await run('caddy', ['validate', ...options]);
  return start('caddy', ['run', ...options], port);
}

/** Starts an authorization server of which there is no more than metadata and a key; gives its `issuer`, and `close()`. */
export async function startIssuer() {
  const { publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const keys = [{ ...publicKey.export({ format: 'jwk' }), kid: 'one', use: 'sig', alg: 'ES256' }];
  const server = createHttpServer((request, response) => {
    const metadata = { issuer, jwks_uri: `${issuer}/keys`, authorization_endpoint: `${issuer}/authorize`, token_endpoint: `${issuer}/token`, response_types_supported: ['code'] };
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify(request.url === '/keys' ? { keys } : metadata));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const issuer = `http://127.0.0.1:${server.address().port}`;
  return { issuer, close: () => server.close() };
}

/** Starts Prometheus on the shipped files. */
export async function startPrometheus(folder, changes, port) {
  const file = adapt('prometheus.yml', folder, changes);
  adapt('alerts.yml', folder, {});
  await run('promtool', ['check', 'config', '--lint-fatal', file]);
  const data = path.join(folder, 'prometheus');
  const options = [`--storage.tsdb.path=${data}`, `--web.listen-address=127.0.0.1:${port}`, '--log.level=error'];
  const prometheus = await start('prometheus', [`--config.file=${file}`, ...options], port);
  // It listens before it can answer.
  let ready = false;
  const ask = async () => {
    while (!ready && prometheus.exitCode === null) ready = await fetch(`http://127.0.0.1:${port}/-/ready`).then((answer) => answer.ok, () => false);
  };
  const asked = ask();
  await until(() => 'prometheus to be ready', () => ready || prometheus.exitCode !== null);
  await asked;
  return prometheus;
}
