// Runs steps one after the other and prints "ok NAME" or "FAIL NAME: why" for each.
import { setTimeout as delay } from 'node:timers/promises';

const STEP_LIMIT_MS = 30_000;

/** Waits for a condition; `what` says what was waited for, in case it never comes. */
export async function until(what, condition) {
  const end = Date.now() + STEP_LIMIT_MS / 2;
  while (!condition()) {
    if (Date.now() > end) throw new Error(`no ${what()}`);
    await delay(10);
  }
}

/**
 * Runs `steps`, pairs of a name and an async function, in order; a failed one does not keep the next from its try.
 * Gives the number of failures.
 */
export async function report(steps) {
  let failed = 0;
  for (const [name, step] of steps) {
    try {
      const limit = delay(STEP_LIMIT_MS, undefined, { ref: false }).then(() => {
        throw new Error(`not done after ${STEP_LIMIT_MS} ms`);
      });
      await Promise.race([step(), limit]);
      console.log(`ok ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL ${name}: ${String(error?.message ?? error).replace(/\s+/g, ' ').slice(0, 300)}`);
    }
  }
  return failed;
}
