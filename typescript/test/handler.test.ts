import assert from 'node:assert/strict';
import { gzipSync } from 'node:zlib';
import { afterEach, beforeEach, test } from 'node:test';

import { encode } from '../src/codec.js';
import { Deliveries, notRegistered } from '../src/deliveries.js';
import { createHandlerFactory } from '../src/handler.js';
import { sign } from '../src/signature.js';
import { buildWorld } from '../src/world.js';
import { FakeServer } from './fake.js';

const STEPS = Symbol.for('@workflow/core//registeredSteps');
const registry = globalThis as unknown as Record<symbol, Map<string, unknown> | undefined>;

type Handler = Parameters<ReturnType<typeof createHandlerFactory>>[1];

function request(delivery: unknown, token = 'token'): Request {
  const body = delivery instanceof Uint8Array ? delivery : encode(delivery);
  return new Request('http://app/.well-known/workflow/v1/flow', {
    method: 'POST',
    headers: { 'redis-world-signature': sign([token], body) },
    body: Buffer.from(body),
  });
}

const delivery = (payload: unknown, queueName = '__wkf_workflow_w'): object => ({
  queueName,
  messageId: 'msg_1',
  attempt: 2,
  payload,
  postponed: 0,
});

async function deliver(
  handler: Handler,
  sent: Request = request(delivery({ runId: 'wrun_1' })),
  prefix = '__wkf_workflow_',
  token = 'token',
): Promise<{ status: number; body: unknown; headers: Headers }> {
  const route = createHandlerFactory({ token }, new Deliveries())(prefix, handler);
  const response = await route(sent);
  return { status: response.status, body: await response.json(), headers: response.headers };
}

const never: Handler = () => {
  throw new Error('the handler must not run');
};

beforeEach(() => {
  registry[STEPS] = undefined;
});

afterEach(() => {
  registry[STEPS] = undefined;
});

test('the handler gets the payload and the meta data', async () => {
  const calls: unknown[] = [];
  const { status, body } = await deliver(async (...args) => void calls.push(args));
  assert.deepEqual([status, body], [200, {}]);
  const meta = { attempt: 2, queueName: '__wkf_workflow_w', messageId: 'msg_1' };
  assert.deepEqual(calls, [[{ runId: 'wrun_1' }, meta]]);
});

for (const [result, body] of [
  [{ timeoutSeconds: 0 }, { timeoutSeconds: 0 }],
  [{ timeoutSeconds: 1.5 }, { timeoutSeconds: 1.5 }],
  [{ timeoutSeconds: -1 }, {}],
  [{ timeoutSeconds: '1' }, {}],
  ['text', {}],
  [null, {}],
] as const) {
  test(`the result ${JSON.stringify(result)} is answered with ${JSON.stringify(body)}`, async () => {
    assert.deepEqual((await deliver(async () => result)).body, body);
  });
}

test('an error is status 500 with its text', async () => {
  const { status, body } = await deliver(async () => {
    throw Object.assign(new RangeError('odd'), { retryAfter: 1.2 });
  });
  assert.deepEqual([status, body], [500, { error: 'RangeError: odd' }]);
});

test('the time of an error is passed on', async () => {
  const { headers } = await deliver(async () => {
    throw Object.assign(new Error('later'), { retryAfter: 1.2 });
  });
  assert.equal(headers.get('retry-after'), '2');
});

test('a wrong token, no token and no signature are refused', async () => {
  assert.equal((await deliver(never, request(delivery({}), 'wrong'))).status, 401);
  assert.equal((await deliver(never, request(delivery({})), '__wkf_workflow_', '')).status, 401);
  const bare = new Request('http://app/', { method: 'POST', body: Buffer.from(encode(delivery({}))) });
  assert.equal((await deliver(never, bare)).status, 401);
});

test('each of several tokens is accepted', async () => {
  const sent = request(delivery({}), 'old');
  assert.equal((await deliver(async () => 0, sent, '__wkf_workflow_', 'new, old')).status, 200);
});

test('bodies that are no delivery are refused', async () => {
  for (const body of [Buffer.alloc(0), Buffer.from([0xff]), encode([]), encode({ queueName: 'q' })]) {
    assert.equal((await deliver(never, request(body))).status, 400);
  }
});

test('messages of another queue go back', async () => {
  assert.equal((await deliver(never, request(delivery({}, '__other_wkf_workflow_w')))).status, 404);
});

const step = '__wkf_step_step//./workflows/a.ts//pay';

test('a step that the app lacks goes back, one that it has runs', async () => {
  registry[STEPS] = new Map([['step//./workflows/b.ts//pay', 1]]);
  const missing = await deliver(never, request(delivery({}, step)), '__wkf_step_');
  assert.equal(missing.status, 503);
  assert.match(JSON.stringify(missing.body), /no step/);
  registry[STEPS].set('step//./workflows/a.ts//pay', 1);
  assert.equal((await deliver(async () => 0, request(delivery({}, step)), '__wkf_step_')).status, 200);
});

test('a step is found under the roots that the runtime takes for each other', async () => {
  for (const root of ['./workflows', './src/workflows', './example/workflows']) {
    registry[STEPS] = new Map([[`step//${root}/a.ts//pay`, 1]]);
    const sent = request(delivery({}, step));
    assert.equal((await deliver(async () => 0, sent, '__wkf_step_')).status, 200);
  }
});

test('a step of the SDK is found under its name', async () => {
  registry[STEPS] = new Map([['step//./node_modules/workflow//__builtin_response_json', 1]]);
  const sent = request(delivery({}, '__wkf_step___builtin_response_json'));
  assert.equal((await deliver(async () => 0, sent, '__wkf_step_')).status, 200);
});

test('generation 5 names the step in the message', async () => {
  registry[STEPS] = new Map([['step//./workflows/b.ts//pay', 1]]);
  const payload = { runId: 'wrun_1', stepId: 's', stepName: 'step//./workflows/a.ts//pay' };
  assert.equal((await deliver(never, request(delivery(payload)))).status, 503);
});

test('health checks are no steps', async () => {
  registry[STEPS] = new Map([['step//./workflows/b.ts//pay', 1]]);
  const sent = request(delivery({ __healthCheck: true }, '__wkf_step_health_check'));
  assert.equal((await deliver(async () => 0, sent, '__wkf_step_')).status, 200);
});

test('without a registry each step is tried', async () => {
  assert.equal((await deliver(async () => 0, request(delivery({}, step)), '__wkf_step_')).status, 200);
});

const text = 'Workflow "workflow//./a.ts//order" is not registered in the current deployment.';
const serialized = `devl[["Error",1],{"message":2},${JSON.stringify(text)}]`;
const forms: [string, unknown][] = [
  ['an object', { message: text }],
  ['a text', text],
  ['bytes', Buffer.from(serialized)],
  ['compressed bytes', Buffer.concat([Buffer.from('gzip'), gzipSync(serialized)])],
];

for (const [name, error] of forms) {
  test(`a run does not fail for a workflow that the app lacks, by ${name}`, async () => {
    const server = await FakeServer.start();
    const world = buildWorld({ url: server.url, token: 'token' });
    server.on('events.create', () => ({ body: {} }));
    const failed = { eventType: 'run_failed', eventData: { error, errorCode: 'RUNTIME_ERROR' } };
    for (const swallow of [false, true]) {
      const route = world.createQueueHandler('__wkf_workflow_', async () => {
        await world.events.create('wrun_1', failed).catch((reason: unknown) => {
          if (!swallow) throw reason as Error;
        });
      });
      const response = await route(request(delivery({ runId: 'wrun_1' })));
      assert.equal(response.status, 503);
      assert.match(JSON.stringify(await response.json()), /workflow\/\/\.\/a\.ts\/\/order/);
    }
    assert.equal(server.calls.length, 0);
    // Outside of a delivery it is a call like any other.
    await world.events.create('wrun_1', failed);
    assert.equal(server.calls.length, 1);
    await world.close();
    await server.close();
  });
}

test('errors of the own code of a workflow fail its run', () => {
  const data = (error: unknown, errorCode: string): object => ({ error, errorCode });
  const event = (eventData: object, eventType = 'run_failed') => ({ eventType, eventData });
  assert.equal(notRegistered(event(data({ message: text }, 'USER_ERROR'))), undefined);
  assert.equal(notRegistered(event(data({ message: 'other' }, 'RUNTIME_ERROR'))), undefined);
  assert.equal(notRegistered(event(data(undefined, 'RUNTIME_ERROR'))), undefined);
  assert.equal(notRegistered(event(data(text, 'RUNTIME_ERROR'), 'step_failed')), undefined);
  assert.equal(notRegistered({ eventType: 'run_failed' }), undefined);
  const garbled = Buffer.from('gzipno gzip at all');
  assert.equal(notRegistered(event(data(garbled, 'RUNTIME_ERROR'))), undefined);
});
