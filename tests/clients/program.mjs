// Runs a program in any language that does steps and prints "ok NAME" or "FAIL NAME: why" for each.
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { spawnTracked } from '../gateway.mjs';

const LIMIT_MS = 120_000;
const LAST_LINES = 40;

/** Runs it to its end and shows its steps under `name`: `{ passed, failed }`. What it says otherwise is shown if it failed. */
export async function runProgram(name, [command, ...args]) {
  const program = spawnTracked(command, args, { stdio: ['ignore', 'pipe', 'pipe'], timeout: LIMIT_MS });
  const failedToStart = once(program, 'error').then(([error]) => {
    throw new Error(`${command} does not start: ${error.message}`);
  });
  const outcome = { passed: 0, failed: 0 };
  const said = [];
  createInterface({ input: program.stderr }).on('line', (line) => said.push(line));
  createInterface({ input: program.stdout }).on('line', (line) => {
    const [, result, rest] = /^(ok|FAIL) (.*)$/.exec(line) ?? [];
    if (!result) return void said.push(line);
    outcome[result === 'ok' ? 'passed' : 'failed'] += 1;
    console.log(`${result} ${name}-${rest}`);
  });
  const [status, signal] = await Promise.race([once(program, 'close'), failedToStart]);
  if (outcome.failed || status !== 0) said.slice(-LAST_LINES).forEach((line) => console.log(`  ${name}: ${line}`));
  // A program that dies, or says nothing, has failed whatever its last words were.
  if (signal || (status !== 0) !== outcome.failed > 0 || outcome.passed + outcome.failed === 0) {
    outcome.failed += 1;
    console.log(`FAIL ${name}-exit: ended with ${signal ?? status}`);
  }
  return outcome;
}
