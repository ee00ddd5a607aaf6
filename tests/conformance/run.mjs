// Runs the official conformance suite against the gateway, or against anything else, and compares scenario by scenario
// with expected-REVISION.json: which scenarios ran, and how many checks of each must succeed without a failure or a
// warning. The numbers are what the fixture reaches when its SDK serves it without a gateway.
//
//   node run.mjs [gateway | direct | URL] [REVISION…]      default: the gateway, at every revision with a file
//   node run.mjs direct --record                           writes the expectations anew from direct.mjs
//
// Ends with "conformance: N passed, N failed" on a line; exit status 0 only when nothing failed.
import { once } from 'node:events';
import { mkdirSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { configuration, NODE, RESULTS, server, spawnTracked, startDirect, startGateway, tail } from '../gateway.mjs';

const HERE = path.dirname(fileURLToPath(import.meta.url));
const SUITE = path.join(HERE, '../node_modules/@modelcontextprotocol/conformance/dist/index.js');
const REVISIONS = ['2025-11-25', '2025-06-18', '2025-03-26'];
const FROZEN = '2025-11-25'; // the one revision of these with a frozen set of requirements in the suite
const SUITE_LIMIT_MS = 420_000;
const SCENARIO_LIMIT_MS = 20_000;

// These two judge streams, which the gateway opens only where a call needs one, so they run against one that opens them at
// once. A stdio child cannot end an HTTP stream either: that gateway ends streams by itself. The polling call takes three
// seconds: the first cut comes before its end, the one of the resumed stream after it.
const STREAMED = ['server-sse-polling', 'server-sse-multiple-streams'];
const STREAM_SETTINGS = '[streams]\nsse_after = "0s"\nmax_age = "2s"\n';

const expectedFile = (revision) => path.join(HERE, `expected-${revision}.json`);

/** Runs the suite once and reads what it saved: a map from scenario to its checks, and its exit status. */
async function runSuite(url, name, selection) {
  const folder = path.join(RESULTS, 'conformance', name);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  const log = path.join(folder, 'log.txt');
  const output = openSync(log, 'w');
  const args = [SUITE, 'server', '--url', url, ...selection, '--timeout', String(SCENARIO_LIMIT_MS), '-o', folder];
  const suite = spawnTracked(NODE, args, { stdio: ['ignore', output, output], timeout: SUITE_LIMIT_MS });
  const [status, signal] = await once(suite, 'exit');
  if (signal) throw new Error(`the suite was still running after ${SUITE_LIMIT_MS} ms (${log}):\n${tail(log)}`);

  const scenarios = new Map();
  for (const entry of readdirSync(folder).sort()) {
    const scenario = /^server-(.+)-\d{4}-\d\d-\d\dT[^/]*$/.exec(entry)?.[1];
    if (scenario) scenarios.set(scenario, JSON.parse(readFileSync(path.join(folder, entry, 'checks.json'), 'utf8')));
  }
  if (scenarios.size === 0) throw new Error(`the suite saved no result (exit ${status}, ${log}):\n${tail(log)}`);
  return scenarios;
}

/** What went wrong in a scenario whose `expected` number of checks must succeed; empty when nothing did. */
function complaints(checks, expected) {
  if (!checks) return ['did not run'];
  const bad = checks.filter(({ status }) => status === 'FAILURE' || status === 'WARNING');
  const found = bad.map((check) => `${check.id}: ${check.errorMessage ?? check.details?.message ?? check.status}`);
  const succeeded = checks.filter(({ status }) => status === 'SUCCESS').length;
  if (succeeded < expected) found.push(`${succeeded} of ${expected} checks succeeded`);
  return found;
}

function selectionOf(revision) {
  return revision === FROZEN ? ['--requirements', revision] : ['--suite', 'all', '--spec-version', revision];
}

/** Prints the table of one revision and gives the counts. */
function report(revision, scenarios) {
  const expected = JSON.parse(readFileSync(expectedFile(revision), 'utf8'));
  const counts = { passed: 0, failed: 0 };
  console.log(`\nconformance ${revision}`);
  const row = (scenario, group, found) => {
    counts[found.length ? 'failed' : 'passed'] += 1;
    const note = [group === 'scored' ? '' : '(not scored)', ...found].join(' ').trim();
    console.log(`  ${found.length ? 'FAIL' : 'ok  '} ${scenario.padEnd(34)} ${note}`.trimEnd());
  };
  for (const group of ['scored', 'not_scored']) {
    const wanted = Object.entries(expected[group]);
    const before = counts.passed;
    for (const [scenario, checks] of wanted) row(scenario, group, complaints(scenarios.get(scenario), checks));
    if (wanted.length) console.log(`  ${group.replace('_', ' ')}: ${counts.passed - before} of ${wanted.length} pass`);
  }
  for (const scenario of scenarios.keys()) {
    const known = scenario in expected.scored || scenario in expected.not_scored;
    if (!known) row(scenario, 'scored', [`is not in ${path.basename(expectedFile(revision))}: the suite changed`]);
  }
  return counts;
}

/** Writes the expectation from a run; which scenarios count for the score is the suite's word in its log. */
function record(revision, scenarios) {
  const log = readFileSync(path.join(RESULTS, 'conformance', revision, 'log.txt'), 'utf8');
  const unscored = log.split(/^Not scored for /m)[1] ?? '';
  const expected = { scored: {}, not_scored: {} };
  for (const [scenario, checks] of scenarios) {
    const group = unscored.includes(` ${scenario} (`) ? 'not_scored' : 'scored';
    expected[group][scenario] = checks.filter(({ status }) => status === 'SUCCESS').length;
  }
  writeFileSync(expectedFile(revision), `${JSON.stringify(expected, null, 2)}\n`);
}

function fixtureGateway(log, settings) {
  const fixture = server('fixture', NODE, [path.join(HERE, 'fixture.mjs')]);
  return startGateway(configuration(fixture, settings), log);
}

/** Every revision against one target, in the order given: a map from revision to its scenarios. */
async function runAll(target, revisions) {
  const results = new Map();
  for (const revision of revisions) {
    results.set(revision, await runSuite(target.url('fixture'), revision, selectionOf(revision)));
  }
  return results;
}

/** The checks of one scenario alone. */
async function runOne(gateway, scenario) {
  const selection = ['--scenario', scenario, '--spec-version', FROZEN];
  const scenarios = await runSuite(gateway.url('fixture'), scenario, selection);
  return scenarios.get(scenario);
}

/** Counts an end that was not clean as a failure, after everything else was reported. */
async function stopAndCount(target, total) {
  try {
    await target.stop();
  } catch (error) {
    console.log(`  FAIL drain: ${error.message}`);
    total.failed += 1;
  }
}

async function startTarget(target) {
  if (target === 'direct') return startDirect();
  if (target === 'gateway') return fixtureGateway('conformance-gateway.log', '');
  return { url: () => target, stop: async () => {} };
}

const words = process.argv.slice(2);
const recording = words.includes('--record');
const [target = 'gateway', ...chosen] = words.filter((word) => word !== '--record');
const revisions = chosen.length ? chosen : REVISIONS;
const stranger = revisions.find((revision) => !REVISIONS.includes(revision));
if (stranger || (recording && target !== 'direct')) {
  console.error(stranger ? `no such revision here: ${stranger} (${REVISIONS.join(', ')})` : '--record is for direct only');
  process.exit(2);
}

const targets = [await startTarget(target)];
const results = await runAll(targets[0], revisions);
if (target === 'gateway' && results.has(FROZEN)) {
  targets.push(await fixtureGateway('conformance-streams-gateway.log', STREAM_SETTINGS));
  for (const scenario of STREAMED) results.get(FROZEN).set(scenario, await runOne(targets[1], scenario));
}

const total = { passed: 0, failed: 0 };
for (const [revision, scenarios] of results) {
  if (recording) record(revision, scenarios);
  const { passed, failed } = report(revision, scenarios);
  total.passed += passed;
  total.failed += failed;
}
for (const started of targets) await stopAndCount(started, total);
console.log(`conformance: ${total.passed} passed, ${total.failed} failed`);
process.exit(total.failed ? 1 : 0);
