// Measures runs of ten steps on one World, as often as it is asked to.
//
//   node driver.mjs PACKAGE PLACE
//
// PLACE is where the World keeps its data: the URL of a server, or a folder. Each line of the
// standard input is a request, {"runs": 100, "callers": 64, "steps": 10, "bytes": 256}, and is
// answered by one line: {"count": 100, "seconds": 1.5, "latencies": [seconds of each run]}, or
// {"error": text}. The first line, before any request, tells the versions. It ends with its
// input.

import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";

// What the events have to say where the World doesn't tell: each one understands 2.
const SPEC_VERSION = 2;

// Only storage is opened: no World starts the workers of its queue, which would poll meanwhile.
const OPEN = {
  "@workflow-worlds/redis": async (place) => {
    const { createWorld } = await import("@workflow-worlds/redis");
    return createWorld({ redisUrl: place });
  },
  "@workflow/world-postgres": async (place) => {
    const { createWorld } = await import("@workflow/world-postgres");
    // With the number of connections that it takes by itself: ten.
    return createWorld({ connectionString: place });
  },
  "@workflow/world-local": async (place) => {
    const { createLocalWorld } = await import("@workflow/world-local");
    const world = createLocalWorld({ dataDir: place, recoverActiveRuns: false });
    await world.start(); // has no workers, and makes the folder
    return world;
  },
};

async function oneRun(world, steps, payload) {
  const specVersion = world.specVersion ?? SPEC_VERSION;
  const append = (runId, event) =>
    world.events.create(runId, { ...event, specVersion }, { resolveData: "none" });
  const created = await append(null, {
    eventType: "run_created",
    eventData: { deploymentId: "bench", workflowName: "bench", input: payload },
  });
  const { runId } = created.run;
  await append(runId, { eventType: "run_started" });
  for (let number = 0; number < steps; number++) {
    // These Worlds want it unique among all runs, as the runtime makes it.
    const correlationId = `${runId.replace("wrun_", "step_")}${number}`;
    await append(runId, {
      eventType: "step_created",
      correlationId,
      eventData: { stepName: "s", input: payload },
    });
    await append(runId, { eventType: "step_started", correlationId });
    await append(runId, {
      eventType: "step_completed",
      correlationId,
      eventData: { result: payload },
    });
  }
  await append(runId, { eventType: "run_completed", eventData: { output: payload } });
  return runId;
}

// A World that drops events would be fast.
async function check(world, runId, steps, payload) {
  const run = await world.runs.get(runId);
  if (run.status !== "completed") {
    throw new Error(`run ${runId} is ${run.status}, not completed`);
  }
  if (!Buffer.from(payload).equals(run.output)) {
    throw new Error(`run ${runId} has lost its output`);
  }
  const expected = 3 + 3 * steps;
  const page = await world.events.list({ runId, pagination: { limit: expected + 1 } });
  if (page.data.length !== expected) {
    throw new Error(`run ${runId} has ${page.data.length} events, not ${expected}`);
  }
  const results = page.data.filter(
    (event) =>
      event.eventType === "step_completed" && Buffer.from(payload).equals(event.eventData.result),
  );
  if (results.length !== steps) {
    throw new Error(`run ${runId} has ${results.length} results of steps, not ${steps}`);
  }
}

async function measure(world, { runs, callers, steps, bytes }) {
  const payload = new Uint8Array(Buffer.alloc(bytes, "x"));
  const latencies = [];
  let begun = 0;
  let last;
  const caller = async () => {
    while (begun < runs) {
      begun += 1;
      const start = performance.now();
      last = await oneRun(world, steps, payload);
      latencies.push((performance.now() - start) / 1000);
    }
  };
  const start = performance.now();
  await Promise.all(Array.from({ length: callers }, caller));
  const seconds = (performance.now() - start) / 1000;
  await check(world, last, steps, payload);
  return { count: latencies.length, seconds, latencies };
}

function answer(message) {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

// The standard output is for answers; Worlds have things to say too.
console.log = console.info = console.debug = console.error;

const [name, place] = process.argv.slice(2);
const world = await OPEN[name](place);
const manifest = new URL(`node_modules/${name}/package.json`, import.meta.url);
const { version } = JSON.parse(await readFile(manifest, "utf8"));
answer({ version, node: process.versions.node });
for await (const line of createInterface({ input: process.stdin })) {
  try {
    answer(await measure(world, JSON.parse(line)));
  } catch (error) {
    answer({ error: String(error?.stack ?? error) });
  }
}
// Not every World can be closed, and open connections would keep the process.
process.exit(0);
