import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, mock, test } from 'node:test';

import type { Event, World } from '@workflow/world';

import type { RedisWorldOptions } from '../../src/index.js';
import { buildWorld } from '../../src/world.js';
import { FakeApp, type Route, until } from '../fake.js';
import { Servers } from './server.js';

const servers = new Servers();
const worlds: { close(): Promise<void> }[] = [];

function open(options: RedisWorldOptions = {}): World {
  const world = buildWorld({ url: servers.url, token: servers.token, ...options });
  worlds.push(world);
  return world as unknown as World;
}

let world: World;

before(() => servers.start());
after(() => servers.stop());

beforeEach(() => {
  world = open();
});

afterEach(async () => {
  await Promise.all(worlds.splice(0).map((one) => one.close()));
});

const bytes = (...values: number[]): Uint8Array => new Uint8Array(values);

async function created(input = bytes(0, 255)): Promise<string> {
  const { run } = await world.events.create(null, {
    eventType: 'run_created',
    specVersion: 7,
    eventData: { deploymentId: 'd', workflowName: 'w', input },
  });
  return run.runId;
}

async function started(): Promise<string> {
  const runId = await created();
  await world.events.create(runId, { eventType: 'run_started', specVersion: 7 });
  return runId;
}

const message = (runId: string, more: object = {}): never => ({ runId, ...more }) as never;
const queueName = '__wkf_workflow_w' as never;

test('a run from its creation to its end', async () => {
  const runId = await created();
  const first = await world.events.create(runId, { eventType: 'run_started', specVersion: 7 });
  assert.equal(first.run.status, 'running');
  assert.ok(first.run.startedAt instanceof Date);
  const again = await world.events.create(runId, { eventType: 'run_started', specVersion: 7 });
  assert.equal(again.event?.eventType, 'run_started');
  const step = { correlationId: 'step_1', specVersion: 7 };
  const input = bytes(1, 0, 2);
  await world.events.create(runId, {
    ...step,
    eventType: 'step_created',
    eventData: { stepName: 'pay', input },
  });
  const begun = await world.events.create(runId, { ...step, eventType: 'step_started' });
  assert.equal(begun.step.attempt, 1);
  assert.deepEqual(begun.step.input, input);
  await world.events.create(runId, {
    ...step,
    eventType: 'step_completed',
    eventData: { result: bytes() },
  });
  await world.events.create(runId, {
    eventType: 'run_completed',
    specVersion: 7,
    eventData: { output: bytes(9) },
  });
  const run = await world.runs.get(runId);
  assert.equal(run.status, 'completed');
  assert.deepEqual([run.input, run.output], [bytes(0, 255), bytes(9)]);
  assert.equal(run.output?.constructor, Uint8Array);
  assert.equal('error' in run, false);
  const { data, hasMore } = await world.events.list({ runId });
  assert.deepEqual(
    data.map(({ eventType }) => eventType),
    ['run_created', 'run_started', 'step_created', 'step_started', 'step_completed', 'run_completed'],
  );
  assert.equal(hasMore, false);
  assert.equal((await world.steps.get(runId, 'step_1')).status, 'completed');
  assert.deepEqual((await world.steps.list({ runId })).data.length, 1);
  assert.deepEqual(
    (await world.runs.getMany!([runId, 'wrun_01ARZ3NDEKTSV4RRFFQ69G5FAV'])).map((one) => one?.status),
    ['completed', undefined],
  );
});

test('a write reports what its writer has not seen', async () => {
  const runId = await started();
  const { cursor, data } = await world.events.list({ runId });
  const other = open();
  await other.events.create(runId, {
    eventType: 'wait_created',
    specVersion: 7,
    correlationId: 'wait_1',
    eventData: { resumeAt: new Date(Date.now() + 60_000) },
  });
  const seen: Event[] = [];
  const result = await world.events.create(
    runId,
    {
      eventType: 'step_created',
      specVersion: 7,
      correlationId: 'step_1',
      eventData: { stepName: 's', input: bytes(1) },
    },
    { sinceCursor: cursor!, eventCount: data.length, replayEventObserver: (event) => seen.push(event) },
  );
  assert.deepEqual(
    result.events?.map(({ eventType }) => eventType),
    ['wait_created', 'step_created'],
  );
  assert.equal(seen.length, 2);
});

test('errors are those of the SDK', async () => {
  const missing = 'wrun_01ARZ3NDEKTSV4RRFFQ69G5FAV';
  await assert.rejects(world.runs.get(missing), { name: 'WorkflowRunNotFoundError', runId: missing });
  await assert.rejects(world.hooks.getByToken('nobody'), { name: 'HookNotFoundError', status: 404 });
  const runId = await started();
  await assert.rejects(world.steps.get(runId, 'none'), { name: 'WorkflowWorldError', status: 404 });
  const complete = {
    eventType: 'run_completed' as const,
    specVersion: 7,
    eventData: { output: bytes(1) },
  };
  await world.events.create(runId, complete);
  await assert.rejects(world.events.create(runId, complete), (error: { name: string }) =>
    ['EntityConflictError', 'RunExpiredError'].includes(error.name),
  );
});

test('a wrong token is named', async () => {
  await assert.rejects(open({ token: 'some-other-token' }).runs.list(), { status: 401 });
});

test('hooks, attributes, batches and cancelling', async () => {
  const runId = await started();
  const token = `token/ü ${runId}`;
  const { hook } = await world.events.create(runId, {
    eventType: 'hook_created',
    specVersion: 7,
    correlationId: 'hook_1',
    eventData: { token },
  });
  assert.equal(hook?.token, token);
  assert.equal((await world.hooks.getByToken(token)).runId, runId);
  assert.equal((await world.hooks.get('hook_1')).token, token);
  assert.equal((await world.hooks.list({ runId })).data.length, 1);
  const changes = [{ key: 'phase', value: 'one' }];
  assert.deepEqual(await world.runs.experimentalSetAttributes!(runId, changes), {
    attributes: { phase: 'one' },
  });
  const { results } = await world.events.createBatch!(
    runId,
    [1, 2].map((n) => ({
      event: {
        eventType: 'step_created' as const,
        specVersion: 7,
        correlationId: `step_${n}`,
        eventData: { stepName: 's', input: bytes(n) },
      },
    })),
  );
  assert.deepEqual(
    results.map(({ status }) => status),
    [200, 200],
  );
  const cancelled = await world.runs.cancelMany!({ runIds: [runId] });
  assert.equal(cancelled.results[0]?.outcome, 'cancelled');
});

test('waiting for the end of a run', async () => {
  const runId = await started();
  const early = await world.runs.waitForTerminalStatus!(runId, { timeoutMs: 50 });
  assert.equal(early.status, 'running');
  const waiting = world.runs.waitForTerminalStatus!(runId, { timeoutMs: 20_000 });
  await world.events.create(runId, { eventType: 'run_cancelled', specVersion: 7 });
  assert.equal((await waiting).status, 'cancelled');
});

test('a stream is read while it is written, and after a crash of the server', async () => {
  const runId = await started();
  const name = 'strm_ü/1';
  const reader = (await world.streams.get(runId, name)).getReader();
  const text = async (): Promise<string> => Buffer.from((await reader.read()).value ?? []).toString();
  await world.streams.write(runId, name, 'one');
  assert.equal(await text(), 'one');
  await world.streams.writeMulti!(runId, name, ['two', new Uint8Array(), 'three']);
  assert.deepEqual([await text(), await text()], ['two', 'three']);
  await servers.kill();
  const written = world.streams.write(runId, name, 'four');
  await servers.serve();
  await written;
  assert.equal(await text(), 'four');
  await world.streams.close(runId, name);
  assert.equal((await reader.read()).done, true);
  assert.deepEqual(await world.streams.getInfo(runId, name), { tailIndex: 4, done: true });
  const page = await world.streams.getChunks(runId, name, { limit: 2 });
  assert.deepEqual(page.data.map(({ index, data }) => [index, Buffer.from(data).toString()]), [
    [0, 'one'],
    [1, 'two'],
  ]);
  assert.deepEqual(await world.streams.list(runId), [name]);
  const older = world as never as {
    readFromStream(n: string, i: number): Promise<ReadableStream>;
    writeToStream(n: string, id: string, chunk: string): Promise<void>;
  };
  await older.writeToStream('strm_other', runId, 'three');
  await older.writeToStream('strm_other', runId, 'four');
  const found = await older.readFromStream('strm_other', -1);
  assert.equal(Buffer.from((await found.getReader().read()).value as Uint8Array).toString(), 'four');
  await assert.rejects(world.streams.write(runId, name, 'late'), { status: 409 });
});

test('a message is delivered, continued, retried and postponed', async () => {
  mock.method(console, 'warn', () => undefined);
  const runId = await started();
  const seen: [number, unknown][] = [];
  const answers: (() => Response | Promise<never>)[] = [
    () => Response.json({}, { status: 503, headers: { 'retry-after': '0' } }),
    () => Response.json({ timeoutSeconds: 0 }),
    () => Response.json({}),
  ];
  const route: { handler?: Route } = {};
  const app = await FakeApp.start(() => async (request) => {
    const taken = await route.handler!(request.clone());
    if (taken.status !== 200) return taken;
    return (answers.shift() ?? (() => Response.json({})))();
  });
  const pulling = open({ baseUrl: app.url });
  route.handler = pulling.createQueueHandler('__wkf_workflow_', async (payload, { attempt }) => {
    seen.push([attempt, payload]);
    return undefined;
  });
  await pulling.start!();
  const { messageId } = await world.queue(queueName, message(runId, { bytes: bytes(0, 1) }));
  assert.match(String(messageId), /^msg_/);
  await until(() => seen.length >= 3);
  for (const [attempt, payload] of seen) {
    assert.equal(attempt, 1);
    assert.deepEqual((payload as { bytes: unknown }).bytes, bytes(0, 1));
  }
  await pulling.close!();
  await app.close();
  mock.restoreAll();
});

test('a batch of messages reaches the app once each', async () => {
  const runId = await started();
  const seen: number[] = [];
  const route: { handler?: Route } = {};
  const app = await FakeApp.start(() => (request) => route.handler!(request));
  const pulling = open({ baseUrl: app.url });
  route.handler = pulling.createQueueHandler('__wkf_workflow_', async (payload) => {
    seen.push((payload as { n: number }).n);
    return undefined;
  });
  await pulling.start!();
  const many = Array.from({ length: 60 }, (_, n) => n);
  const results = await world.queueBatch!(
    queueName,
    many.map((n) => ({
      message: message(runId, { n, stepId: `step_${n}`, stepName: 's' }),
      opts: { idempotencyKey: `step_${n}` },
    })),
  );
  assert.equal(results.length, 60);
  await until(() => seen.length >= 60);
  assert.deepEqual(seen.sort((a, b) => a - b), many);
  await pulling.close!();
  await app.close();
});

test('calls survive a server that is killed again and again', async () => {
  const runId = await started();
  let ended = false;
  const writes = Promise.all(
    Array.from({ length: 60 }, (_, n) =>
      world.events.create(runId, {
        eventType: 'step_created',
        specVersion: 7,
        correlationId: `step_${n}`,
        eventData: { stepName: 's', input: bytes(n) },
      }),
    ),
  ).finally(() => {
    ended = true;
  });
  const running = (): boolean => !ended;
  // Not for ever: a server that is killed as soon as it is there lets no call through.
  for (let round = 0; round < 2 || (running() && round < 5); round += 1) {
    await servers.kill();
    await servers.serve();
  }
  await writes;
  const { data } = await world.steps.list({ runId, pagination: { limit: 100 } });
  assert.equal(data.length, 60);
  assert.equal((await world.events.list({ runId })).data.length, 62);
});
