// Tries the files in deploy/: two gateways, nginx and HAProxy in front of both, Caddy, and nginx as docs/behind-nginx.md has
// it, in front of one, Prometheus beside them. The gateways take keys and the tokens of an authorization server, so that clients find their way to it.
//
// Ends with "deploy: N passed, N failed" on a line; exit status 0 only when nothing failed.
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { report } from '../clients/steps.mjs';
import { BINARY, RESULTS, server, startGateway } from '../gateway.mjs';
import { Client } from './client.mjs';
import { smugglesNothing } from './smuggling.mjs';
import { block, certificate, freePorts, startCaddy, startHaproxy, startIssuer, startNginx, startPrometheus } from './programs.mjs';

const HOST = 'mcp.example.com';
const KEY = `gangway_${randomBytes(32).toString('base64url')}`;
// All calls at once stay below what one caller may have in flight (limits.requests_in_flight_per_principal).
const SESSIONS = 20;
const CALLS = 3;
const EVENTS = 20;
const EVENT_PAUSE_MS = 100; // less than a proxy waits that would rather pass several events on together
const PRESTOP_MS = 4000; // longer than HAProxy takes to see that a gateway is not ready
const LARGE_BYTES = 7 * 1024 * 1024; // below limits.body_bytes, above what nginx takes by itself

const { issuer, close: closeIssuer } = await startIssuer();

const CONFIGURATION = `
[listen]
address = "127.0.0.1:0"
public_url = "https://${HOST}"
trusted_proxies = ["127.0.0.1"]

[admin]
address = "127.0.0.1:0"

[auth]
methods = ["api_key", "oauth"]

[auth.issuers.company]
issuer = "${issuer}"

[auth.keys.deploy]
hash = "sha256:${createHash('sha256').update(KEY).digest('hex')}"
sessions = 1000

[drain]
prestop = "${PRESTOP_MS}ms"
calls = "1s"

${server('demo', BINARY, ['demo-server'])}
[servers.demo.pool]
max_size = 0
`;

const logOf = (node) => `deploy-gateway-${node}.log`;
const startNode = (node) => startGateway(CONFIGURATION, logOf(node), { GANGWAY_NODE: node });
const nodeOf = (session) => session.split('-')[0];

function assert(condition, text) {
  if (!condition) throw new Error(text);
}

function assertStatus({ status }, ...expected) {
  assert(expected.includes(status), `the status is ${status}, not ${expected.join(' or ')}`);
}

/** A session at the gateway `node`. */
async function openAt(node, client) {
  for (let tries = 0; tries < 20; tries += 1) {
    const session = await client.open();
    if (nodeOf(session) === node) return session;
  }
  throw new Error(`no session was opened at ${node}`);
}

/** 20 sessions, 5 calls each, in parallel; every call must find its session, and every one of the gateways must have some. */
async function routes(client, expected) {
  const sessions = await Promise.all(Array.from({ length: SESSIONS }, () => client.open()));
  const calls = sessions.flatMap((session) => Array.from({ length: CALLS }, (_, n) => [session, `${session} ${n}`]));
  await Promise.all(calls.map(async ([session, text]) => {
    const answer = await client.call(session, 'echo', { text });
    assertStatus(answer, 200);
    assert(JSON.stringify(answer.messages).includes(text), `the answer of a call is not its own: ${JSON.stringify(answer.messages)}`);
  }));
  const nodes = [...new Set(sessions.map(nodeOf))].sort();
  assert(String(nodes) === String(expected), `sessions were opened at ${nodes}`);
  const ended = await Promise.all(sessions.map((session) => client.send('DELETE', session)));
  for (const response of ended) assert(response.resume().statusCode === 204, `DELETE was answered with ${response.statusCode}`);
}

/** A call that ends only when its event has reached us and our answer has reached the server. */
async function passesQuestionsOn(client) {
  const answer = await client.call(await client.open(), 'ask_elicitation', {});
  assertStatus(answer, 200);
  const { messages: [asked, answered] } = answer;
  assert(asked.method === 'elicitation/create' && answered.result && !answered.result.isError, `the call came to ${JSON.stringify(answer.messages)}`);
}

/** Events that leave the server one by one arrive one by one: a proxy that waits for company delivers two at a time. */
async function passesEventsOn(...clients) {
  await Promise.all(clients.map(passesEachEventOn));
}

async function passesEachEventOn(client) {
  const arrivals = [];
  const params = { name: 'slow', arguments: { seconds: EVENTS * EVENT_PAUSE_MS / 1000, steps: EVENTS }, _meta: { progressToken: 1 } };
  const answer = await client.request(await client.open(), 'tools/call', params, () => arrivals.push(performance.now()));
  assertStatus(answer, 200);
  const pauses = arrivals.slice(1).map((arrival, at) => Math.round(arrival - arrivals[at]));
  const single = pauses.filter((pause) => pause > EVENT_PAUSE_MS / 2).length;
  assert(single > pauses.length / 2, `events come in groups, after ${pauses.join(' ')} ms`);
}

/** The standalone stream begins before there is anything to say. */
async function opensStream(client) {
  const response = await client.send('GET', await client.open());
  assert(response.statusCode === 200, `GET was answered with ${response.statusCode}`);
  await once(response, 'data');
  response.destroy();
}

async function passesLargeBodies(client) {
  const text = 'x'.repeat(LARGE_BYTES);
  const answer = await client.call(await client.open(), 'echo', { text });
  assertStatus(answer, 200);
  assert(answer.messages[0].result.structuredContent.text === text, 'the text came back changed');
}

async function refusesStrangers(client) {
  assertStatus(await client.request('zz-0123456789abcdef0123456789abcdef', 'ping'), 404);
  assertStatus(await client.request(undefined, 'ping'), 400);
}

/** Who shows nothing is told where to find out about the authorization server, and finds it there, under the public name. */
async function leadsToIssuer(client) {
  const { status, challenge } = await client.challenge();
  assertStatus({ status }, 401);
  const [, place] = /resource_metadata="([^"]+)"/.exec(challenge) ?? [];
  assert(place === `https://${HOST}/.well-known/oauth-protected-resource/demo/mcp`, `the challenge is ${challenge}`);
  const { resource, authorization_servers: servers } = await client.document(new URL(place).pathname);
  assert(resource === `https://${HOST}/demo/mcp` && servers?.[0] === issuer, `the metadata names ${resource} and ${servers}`);
}

/** No request that hides in another reaches a gateway, and who comes later gets the answers to its own. */
async function hidesNothing(client, ports) {
  const session = await client.open();
  let calls = 0;
  const settled = async () => {
    calls += 1;
    const answer = await client.call(session, 'echo', { text: `settled ${calls}` });
    assert(JSON.stringify(answer.messages).includes(`settled ${calls}"`), `somebody else's answer: ${JSON.stringify(answer)}`);
  };
  for (const [proxyPort, isSecure] of ports) {
    const proxy = { host: HOST, port: proxyPort, certificate: isSecure && readFileSync(crt) };
    await smugglesNothing(proxy, { path: '/demo/mcp', key: KEY, admins: [a.admin, b.admin], settled });
  }
}

function namesClient(nodes, address) {
  const logs = nodes.map((node) => readFileSync(path.join(RESULTS, logOf(node)), 'utf8'));
  assert(logs.every((log) => log.includes(`"client_addr":"${address}"`)), `no log line of ${nodes} has the client's address ${address}`);
}

/**
 * Ends the gateway `a` while sessions are opened and used through every proxy: none may fail to open, a session of `a`
 * goes on until that gateway ends it, and from then on its client is told to start again. So is one that was being opened
 * there at that moment.
 */
async function drains(gateway, clients) {
  const olds = await Promise.all(clients.map((client) => openAt('a', client)));
  let over = false;
  gateway.ended.then(() => { over = true; });
  const told = performance.now();
  gateway.signal('SIGTERM');
  const mayBeOver = () => performance.now() - told > PRESTOP_MS;
  const open = (client) => client.open().catch((error) => {
    if (!mayBeOver() || error.message !== 'initialized was answered with 404') throw error;
    return client.open();
  });
  const use = async (client, old) => {
    while (!over) {
      await open(client);
      const answer = await client.call(old, 'echo', { text: 'x' }).catch(({ code }) => ({ status: code }));
      // The last two: it was on its way to a gateway that closed the connection at that moment.
      assertStatus(answer, 200, ...(mayBeOver() ? [404, 502, 'ECONNRESET'] : []));
      await delay(20);
    }
    assertStatus(await client.call(old, 'echo', { text: 'x' }), 404);
    for (let n = 0; n < 4; n += 1) assert(nodeOf(await client.open()) === 'b', 'a session was opened at a gateway that is gone');
  };
  await Promise.all(clients.map((client, at) => use(client, olds[at])));
  assert((await gateway.ended) === 0, `the gateway ended with ${await gateway.ended}`);
}

/** The value of a PromQL expression, once Prometheus has one. */
async function query(port, expression) {
  for (;;) {
    const answer = await fetch(`http://127.0.0.1:${port}/api/v1/query?query=${encodeURIComponent(expression)}`);
    const { data } = await answer.json();
    if (data?.result?.length) return Number(data.result[0].value[1]);
    await delay(100);
  }
}

const folder = mkdtempSync(path.join(tmpdir(), 'gangway-deploy-'));
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
const { crt, key, pem } = await certificate(HOST, folder);
const [a, b] = await Promise.all([startNode('a'), startNode('b')]);
const [nginxPort, haproxyPort, haproxyPlainPort, caddyPort, shortPort, prometheusPort] = await freePorts(6);
const address = (gateway) => new URL(gateway.url('demo')).host;
const port = (gateway) => gateway.admin.split(':').at(-1);
const clientAt = (proxyPort, localAddress, ca = readFileSync(crt)) =>
  new Client({ host: HOST, port: proxyPort, path: '/demo/mcp', certificate: ca, key: KEY, localAddress });

const proxies = {
  nginx: {
    client: clientAt(nginxPort, '127.0.0.2'),
    address: '127.0.0.2',
    ports: [[nginxPort, true]],
    start: () => startNginx(folder, {
      'listen 443 ssl': `listen 127.0.0.1:${nginxPort} ssl`,
      '/etc/ssl/mcp.example.com.crt': crt,
      '/etc/ssl/mcp.example.com.key': key,
      '10.0.0.11:8080': address(a),
      '10.0.0.12:8080': address(b),
    }, nginxPort),
  },
  haproxy: {
    client: clientAt(haproxyPort, '127.0.0.3'),
    plain: clientAt(haproxyPlainPort, '127.0.0.3', null),
    address: '127.0.0.3',
    ports: [[haproxyPort, true], [haproxyPlainPort, false]],
    start: () => startHaproxy(folder, {
      // HAProxy holds events back on connections without TLS only, as behind something else that ends it.
      'bind :443 ssl crt /etc/haproxy/mcp.example.com.pem':
        `bind 127.0.0.1:${haproxyPort} ssl crt ${pem}\n    bind 127.0.0.1:${haproxyPlainPort}`,
      '10.0.0.11:8080 addr 10.0.0.11 port 9464': `${address(a)} addr 127.0.0.1 port ${port(a)}`,
      '10.0.0.12:8080 addr 10.0.0.12 port 9464': `${address(b)} addr 127.0.0.1 port ${port(b)}`,
    }, haproxyPort),
  },
  caddy: {
    client: clientAt(caddyPort, '127.0.0.4'),
    address: '127.0.0.4',
    ports: [[caddyPort, true]],
    nodes: ['b'],
    start: () => startCaddy(folder, {
      // No administration, no certificate of its own, no HTTP/3, and no port 80.
      'mcp.example.com {':
        `{\n\tadmin off\n\tauto_https off\n\tservers {\n\t\tprotocols h1 h2\n\t}\n}\nhttps://${HOST}:${caddyPort} {\n\tbind 127.0.0.1\n\ttls ${crt} ${key}`,
      '127.0.0.1:8080 {': `${address(b)} {`,
    }, caddyPort),
  },
  'nginx-alone': {
    client: clientAt(shortPort, '127.0.0.5'),
    address: '127.0.0.5',
    ports: [[shortPort, true]],
    nodes: ['b'],
    start: () => startNginx(folder, {
      'listen 443 ssl': `listen 127.0.0.1:${shortPort} ssl`,
      '/etc/ssl/mcp.example.com.crt': crt,
      '/etc/ssl/mcp.example.com.key': key,
      '127.0.0.1:8080': address(b),
    }, shortPort, block('behind-nginx.md', 'nginx')),
  },
};

const steps = Object.entries(proxies).flatMap(([name, { client, plain, address: local, nodes = ['a', 'b'], start, ports }]) => [
  [`${name}-starts`, start],
  [`${name}-routes`, () => routes(client, nodes)],
  [`${name}-questions`, () => passesQuestionsOn(client)],
  [`${name}-events`, () => passesEventsOn(client, ...(plain ? [plain] : []))],
  [`${name}-stream`, () => opensStream(client)],
  [`${name}-large-body`, () => passesLargeBodies(client)],
  [`${name}-strangers`, () => refusesStrangers(client)],
  [`${name}-smuggling`, () => hidesNothing(client, ports)],
  [`${name}-issuer`, () => leadsToIssuer(client)],
  [`${name}-client-address`, () => namesClient(nodes, local)],
]);
steps.push(
  ['prometheus-starts', () => startPrometheus(folder, { 'localhost:9464': a.admin, '15s': '1s' }, prometheusPort)],
  ['prometheus-scrapes', async () => {
    assert((await query(prometheusPort, 'up{job="gangway"}')) === 1, 'the target is down');
    assert((await query(prometheusPort, 'sum(gangway_sessions_opened_total)')) > 0, 'no session was counted');
    const { data } = await (await fetch(`http://127.0.0.1:${prometheusPort}/api/v1/rules`)).json();
    assert(data.groups.flatMap(({ rules }) => rules).length > 0, 'no alert was loaded');
  }],
  ['drain', () => drains(a, [proxies.nginx, proxies.haproxy].map(({ client }) => client))],
  ['end', async () => {
    await b.stop();
    closeIssuer();
  }],
);
const failed = await report(steps);
console.log(`deploy: ${steps.length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
