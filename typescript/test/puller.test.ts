import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { afterEach, beforeEach, mock, test } from 'node:test';

import type { RedisWorldOptions } from '../src/options.js';
import { buildWorld } from '../src/world.js';
import { type Call, FakeApp, FakeServer, refused, type Route, until } from './fake.js';

type World = ReturnType<typeof buildWorld>;

interface Queued {
  payload: unknown;
  queueName?: string;
  headers?: object;
}

let server: FakeServer;
let app: FakeApp | undefined;
let world: World;
let queued: Queued[];
let number: number;

/** Starts an app with the World, whose route is `route` or the World's own handler. */
async function start(options: RedisWorldOptions, route: (world: World) => Route): Promise<void> {
  world = buildWorld({ url: server.url, token: 't', retryBudget: 1, specVersion: 3, ...options });
  const handler = route(world);
  app ??= await FakeApp.start(() => handler);
  world = buildWorld({
    url: server.url,
    token: 't',
    retryBudget: 1,
    specVersion: 3,
    baseUrl: app.url,
    ...options,
  });
  await world.start();
}

/** What became of the messages, in order: [method, number of the message, rest]. */
function outcomes(): [string, number, object][] {
  const methods = ['queue.ack', 'queue.retry', 'queue.release', 'queue.postpone'];
  return server.calls
    .filter(({ method }) => methods.includes(method))
    .map(({ method, args: { handle, ...rest } }) => [method.slice(6), Number(handle), rest]);
}

async function claim(
  { args }: Call,
  response: ServerResponse,
): Promise<{ body: object } | undefined> {
  // The claims of an ended test must not take the messages of the next one.
  const own = queued;
  const isGone = (): boolean => response.destroyed || own !== queued;
  while (own.length === 0 && !isGone()) await new Promise((resolve) => setTimeout(resolve, 5));
  if (isGone()) return undefined;
  const taken = own.splice(0, args['limit'] as number);
  return {
    body: {
      messages: taken.map(({ queueName = '__wkf_workflow_w', ...rest }) => {
        number += 1;
        return { messageId: `msg_${number}`, handle: String(number), queueName, attempt: 1, ...rest };
      }),
    },
  };
}

beforeEach(async () => {
  // Each logs what it does about the failures that the tests make.
  for (const level of ['info', 'warn', 'error'] as const) mock.method(console, level, () => undefined);
  queued = [];
  number = 0;
  app = undefined;
  server = await FakeServer.start();
  server.on('queue.claim', claim);
  for (const method of ['ack', 'retry', 'release', 'postpone', 'extend']) {
    server.on(`queue.${method}`, () => ({ body: { done: true } }));
  }
});

afterEach(async () => {
  await world.close();
  await app?.close();
  await server.close();
  mock.restoreAll();
});

const answer = (status: number, body: object = {}, headers: Record<string, string> = {}): Route =>
  async () => Response.json(body, { status, headers });

test('a message runs in the app and is acked', async () => {
  const seen: unknown[] = [];
  queued.push({ payload: { runId: 'wrun_1', data: new Uint8Array([7]) }, headers: { a: 'b' } });
  await start({}, ({ createQueueHandler }) =>
    createQueueHandler('__wkf_workflow_', async (...args) => void seen.push(args)),
  );
  await until(() => outcomes().length === 1);
  assert.deepEqual(outcomes(), [['ack', 1, {}]]);
  const meta = { attempt: 1, queueName: '__wkf_workflow_w', messageId: 'msg_1' };
  assert.deepEqual(seen, [[{ runId: 'wrun_1', data: new Uint8Array([7]) }, meta]]);
  assert.deepEqual(app!.paths, ['/.well-known/workflow/v1/flow']);
});

test('without a token only this process can deliver', async () => {
  queued.push({ payload: {} });
  await start({ token: '' }, ({ createQueueHandler }) =>
    createQueueHandler('__wkf_workflow_', async () => undefined),
  );
  await until(() => outcomes().length === 1);
  assert.deepEqual(outcomes(), [['ack', 1, {}]]);
});

test('small messages are JSON, large ones CBOR', async () => {
  const types: (string | null)[] = [];
  const sizes: number[] = [];
  const data = [new Uint8Array(100), new Uint8Array(300_000)];
  for (const bytes of data) queued.push({ payload: { runId: `wrun_${bytes.length}`, bytes } });
  await start({}, ({ createQueueHandler }) => {
    const handler = createQueueHandler('__wkf_workflow_', async (message) => {
      const { bytes } = message as { bytes: unknown };
      assert.ok(bytes instanceof Uint8Array);
      sizes.push(bytes.length);
    });
    return (request) => {
      types.push(request.headers.get('content-type'));
      return handler(request);
    };
  });
  await until(() => outcomes().length === 2);
  assert.deepEqual(types.sort(), ['application/cbor', 'application/json']);
  assert.deepEqual(sizes.sort(), [100, 300_000]);
});

test('the claim names the queues, the free slots and the worker', async () => {
  await start({ concurrency: 7, lease: 30 }, () => answer(200));
  await until(() => server.calls.length > 0);
  const { worker, ...rest } = server.calls[0]!.args;
  assert.match(String(worker), /^[a-z0-9]{1,64}$/);
  assert.deepEqual(rest, {
    topics: ['__wkf_workflow_', '__wkf_step_'],
    limit: 7,
    lease: 30,
    wait: 20,
  });
});

test('generation 5 has one queue, and a namespace is part of it', async () => {
  await start({ specVersion: 7, queueNamespace: 'shop' }, () => answer(200));
  await until(() => server.calls.length > 0);
  assert.deepEqual(server.calls[0]!.args['topics'], ['__shop_wkf_workflow_']);
});

test('steps of generation 4 have their own route', async () => {
  queued.push({ payload: { workflowRunId: 'wrun_1', stepId: 's' }, queueName: '__wkf_step_pay' });
  await start({}, () => answer(200));
  await until(() => outcomes().length === 1);
  assert.deepEqual(app!.paths, ['/.well-known/workflow/v1/step']);
});

const answers: [Route, string, object][] = [
  [answer(200, { timeoutSeconds: 0 }), 'ack', { followUp: { delay: 0 } }],
  [answer(200, { timeoutSeconds: 2.5 }), 'ack', { followUp: { delay: 2.5 } }],
  [async () => new Response('no JSON'), 'ack', {}],
  [answer(503), 'postpone', {}],
  [answer(404, {}, { 'retry-after': '3' }), 'postpone', { delay: 3 }],
  [answer(409), 'ack', {}],
  [answer(410), 'ack', {}],
  [answer(422), 'ack', {}],
  [answer(500, { error: 'E' }), 'retry', { error: 'HTTP status 500: {"error":"E"}' }],
  [
    answer(500, {}, { 'retry-after': '9' }),
    'retry',
    { error: 'HTTP status 500: {}', retryAfter: 9 },
  ],
  [answer(401), 'retry', { error: 'HTTP status 401: {}' }],
];

for (const [route, method, rest] of answers) {
  test(`an answer is settled by ${method} ${JSON.stringify(rest)}`, async () => {
    queued.push({ payload: {} });
    await start({}, () => route);
    await until(() => outcomes().length === 1);
    assert.deepEqual(outcomes(), [[method, 1, rest]]);
  });
}

test('no more messages run than there are slots', async () => {
  let running = 0;
  let most = 0;
  queued = Array.from({ length: 12 }, () => ({ payload: {} }));
  await start({ concurrency: 3 }, () => async () => {
    running += 1;
    most = Math.max(most, running);
    await new Promise((resolve) => setTimeout(resolve, 10));
    running -= 1;
    return Response.json({});
  });
  await until(() => outcomes().length === 12);
  assert.equal(most, 3);
});

test('a lease is extended while the message runs', async () => {
  let finish: (() => void) | undefined;
  queued.push({ payload: {} });
  await start({ lease: 0.3 }, () => async () => {
    await new Promise<void>((resolve) => {
      finish = resolve;
    });
    return Response.json({});
  });
  await until(() => server.of('queue.extend').length >= 3);
  assert.deepEqual(server.of('queue.extend')[0]!.args, { handle: '1', lease: 0.3 });
  finish!();
  await until(() => outcomes().length === 1);
  const after = server.of('queue.extend').length;
  await new Promise((resolve) => setTimeout(resolve, 300));
  assert.equal(server.of('queue.extend').length, after);
});

test('steps of one run run all at once, and end few at a time', async () => {
  let running = 0;
  let mostRunning = 0;
  let ending = 0;
  let mostEnding = 0;
  server.on('events.create', () => ({ body: {} }));
  queued = Array.from({ length: 20 }, (_, n) => ({ payload: { runId: 'wrun_1', stepId: `s${n}` } }));
  await start({ concurrency: 20 }, (own) =>
    own.createQueueHandler('__wkf_workflow_', async (payload) => {
      const { stepId } = payload as { stepId: string };
      running += 1;
      mostRunning = Math.max(mostRunning, running);
      await until(() => mostRunning === 20);
      await own.events.create('wrun_1', { eventType: 'step_completed', correlationId: stepId });
      ending += 1;
      mostEnding = Math.max(mostEnding, ending);
      await new Promise((resolve) => setTimeout(resolve, 10));
      ending -= 1;
    }),
  );
  await until(() => outcomes().length === 20);
  assert.equal(mostRunning, 20);
  assert.ok(mostEnding <= 2, `${mostEnding} at a time`);
});

test('a delivery that goes on after its step does not hold the others back', async () => {
  let ended = 0;
  server.on('events.create', () => ({ body: {} }));
  queued = Array.from({ length: 4 }, (_, n) => ({ payload: { runId: 'wrun_1', stepId: `s${n}` } }));
  await start({}, (own) =>
    own.createQueueHandler('__wkf_workflow_', async (payload) => {
      const { stepId } = payload as { stepId: string };
      await own.events.create('wrun_1', { eventType: 'step_failed', correlationId: stepId });
      ended += 1;
      await until(() => ended === 4);
    }),
  );
  await until(() => outcomes().length === 4);
});

test('the limit of a run does not hold other runs back', async () => {
  const release: (() => void)[] = [];
  queued = ['a', 'a', 'a', 'b'].map((run) => ({ payload: { runId: `wrun_${run}`, run } }));
  await start({}, () => async () => {
    await new Promise<void>((resolve) => release.push(resolve));
    return Response.json({});
  });
  // Two of run a and one of run b start at once; the third of run a once two are not young.
  await until(() => release.length === 3);
  await until(() => release.length === 4);
  for (const end of release) end();
  await until(() => outcomes().length === 4);
});

test('an app that does not listen yet gets its messages later', async () => {
  const later = await FakeApp.start(() => answer(200));
  const url = later.url;
  await later.close();
  queued.push({ payload: {} });
  await start({ baseUrl: url }, () => answer(200));
  await until(() => outcomes().length === 1);
  assert.deepEqual(outcomes(), [['postpone', 1, {}]]);
  const back = await FakeApp.start(() => answer(200), Number(new URL(url).port));
  queued.push({ payload: {} });
  await until(() => outcomes().length === 2);
  assert.deepEqual(outcomes()[1], ['ack', 2, {}]);
  await back.close();
});

test('an app that ends in the middle of a message is a failure', async () => {
  queued.push({ payload: {} });
  const dying = await FakeApp.start(() => async () => {
    void dying.close();
    return new Promise<never>(() => undefined);
  });
  await start({ baseUrl: dying.url }, () => answer(200));
  await until(() => outcomes().length === 1);
  assert.equal(outcomes()[0]![0], 'retry');
});

test('a server that goes away is polled again', async () => {
  await start({}, () => answer(200));
  await until(() => server.calls.length > 0);
  const { port } = server;
  await server.close();
  await new Promise((resolve) => setTimeout(resolve, 200));
  server = await FakeServer.start(port);
  server.on('queue.claim', claim).on('queue.ack', () => ({ body: { done: true } }));
  queued.push({ payload: {} });
  await until(() => outcomes().length >= 1);
});

test('start() twice polls once', async () => {
  await start({}, () => answer(200));
  await world.start();
  await until(() => server.calls.length > 0);
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.equal(server.of('queue.claim').length, 1);
});

test('a World that is not started takes nothing', async () => {
  world = buildWorld({ url: server.url, token: 't' });
  server.on('runs.list', () => ({ body: { data: [] } }));
  await world.runs.list();
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.deepEqual(
    server.calls.map(({ method }) => method),
    ['runs.list'],
  );
});

test('close() lets messages end and takes no more', async () => {
  let finish: (() => void) | undefined;
  queued.push({ payload: {} });
  await start({}, () => async () => {
    await new Promise<void>((resolve) => {
      finish = resolve;
    });
    return Response.json({});
  });
  await until(() => finish !== undefined);
  const closing = world.close();
  const claims = server.of('queue.claim').length;
  queued.push({ payload: {} });
  await new Promise((resolve) => setTimeout(resolve, 50));
  finish!();
  await closing;
  assert.deepEqual(outcomes(), [['ack', 1, {}]]);
  assert.equal(server.of('queue.claim').length, claims);
});

test('close() releases what does not end in time', async () => {
  queued.push({ payload: { runId: 'r' } }, { payload: { runId: 'r' } }, { payload: { runId: 'r' } });
  let started = 0;
  await start({ closeTimeout: 0.1 }, () => () => {
    started += 1;
    return new Promise<never>(() => undefined);
  });
  await until(() => started >= 2);
  await world.close();
  const released = outcomes().map(([method, id]) => `${method} ${id}`);
  assert.deepEqual(released.sort(), ['release 1', 'release 2', 'release 3']);
});

test('close() of a World that was not started', async () => {
  world = buildWorld({});
  await world.close();
  await world.close();
});

test('start() names a missing setting', async () => {
  world = buildWorld({});
  await assert.rejects(world.start(), /REDIS_WORLD_SERVER_URL is not set/);
  world = buildWorld({ url: server.url, token: 't', concurrency: 0 });
  await assert.rejects(world.start(), /at least 1/);
});

test('an ack is tried again while the server is busy', async () => {
  queued.push({ payload: {} });
  server.on('queue.ack', () =>
    server.of('queue.ack').length < 3 ? refused(503, 'unavailable') : { body: { done: true } },
  );
  await start({}, () => answer(200));
  await until(() => server.of('queue.ack').length === 3);
});
