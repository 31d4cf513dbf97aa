// Places one order and shows what happens to it. Needs WORKFLOW_TARGET_WORLD=redis-world and a
// server: `redis-world serve`.
import { readFile } from 'node:fs/promises';

import { getRun, resumeHook, start as startRun } from 'workflow/api';
import { getWorld } from 'workflow/runtime';

import { start } from './server.mjs';

process.env.WORKFLOW_TARGET_WORLD ??= 'redis-world';

const stop = await start();
const manifest = JSON.parse(
  await readFile(new URL('./.well-known/workflow/v1/manifest.json', import.meta.url), 'utf8'),
);
const fulfil = manifest.workflows['workflows/orders.ts'].fulfil;
const order = { id: `o${Date.now()}`, customer: 'Ada', item: 'lamp', amount: 2 };
const { runId } = await startRun(fulfil, [order]);
console.log(`run        ${runId}`);

for (;;) {
  try {
    await resumeHook(`approve-${order.id}`, { approved: true, by: 'Grace' });
    break;
  } catch {
    // The order is not checked yet.
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
console.log('approved   by Grace');

const run = getRun(runId);
process.stdout.write('letter     ');
for await (const word of run.getReadable({ namespace: 'letter' })) process.stdout.write(word);
console.log();
console.log('receipt   ', await run.returnValue);
const { data } = await getWorld().steps.list({ runId, resolveData: 'none' });
for (const { stepName, attempt, status } of data) {
  console.log(`step       ${stepName.split('//').at(-1)}: ${status}, attempt ${attempt}`);
}
await stop();
