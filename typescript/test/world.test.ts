import assert from 'node:assert/strict';
import { afterEach, beforeEach, test } from 'node:test';

import type { World } from '@workflow/world';
import type { World as World4 } from 'world4';

import { encode } from '../src/codec.js';
import { buildWorld } from '../src/world.js';
import { FakeServer, refused, until } from './fake.js';

let server: FakeServer;
let world: ReturnType<typeof buildWorld>;

beforeEach(async () => {
  server = await FakeServer.start();
  world = buildWorld({ url: server.url, token: 't', retryBudget: 2 });
});

afterEach(async () => {
  await world.close();
  await server.close();
});

test('one object has the methods of both generations', () => {
  // Compile-time: the shapes are those of the SDK, whose generic results are its own.
  const five: Pick<World, 'streams' | 'hooks' | 'steps' | 'queue' | 'queueBatch'> = world;
  const four: Pick<World4, 'writeToStream' | 'readFromStream' | 'getStreamInfo' | 'hooks' | 'steps'> =
    world;
  for (const object of [five, four]) assert.equal('then' in object, false);
  assert.deepEqual(world.capabilities, { hookResumeDedup: true, hookRetention: { active: true } });
});

test('events.create sends what the server takes', async () => {
  server.on('events.create', () => ({ body: { event: { eventId: 'evnt_1' } } }));
  const occurredAt = new Date(1_700_000_000_123);
  const result = await world.events.create(
    'wrun_1',
    { eventType: 'step_completed', correlationId: 'step_1', eventData: { result: new Uint8Array(3) } },
    {
      requestId: 'r',
      sinceCursor: 'eid:evnt_0',
      eventCount: 4,
      resumeId: 'i',
      resumePayloadDigest: 'd',
      occurredAt,
      resolveData: 'none',
    },
  );
  assert.deepEqual(result, { event: { eventId: 'evnt_1' } });
  assert.deepEqual(server.calls[0]!.args, {
    runId: 'wrun_1',
    event: {
      eventType: 'step_completed',
      correlationId: 'step_1',
      eventData: { result: new Uint8Array(3) },
    },
    requestId: 'r',
    sinceCursor: 'eid:evnt_0',
    eventCount: 4,
    resumeId: 'i',
    payloadDigest: 'd',
    occurredAt,
    resolveData: 'none',
    resolveDelta: 'all',
  });
});

test('a run without an id is null, not missing', async () => {
  server.on('events.create', () => ({ body: {} }));
  await world.events.create(null, { eventType: 'run_created' });
  assert.deepEqual(server.calls[0]!.args, { runId: null, event: { eventType: 'run_created' } });
});

test('the observer sees each event', async () => {
  server.on('events.create', () => ({ body: { events: [{ n: 1 }, { n: 2 }] } }));
  const seen: unknown[] = [];
  await world.events.create(
    'wrun_1',
    { eventType: 'run_started' },
    { replayEventObserver: (event) => void seen.push(event) },
  );
  assert.deepEqual(seen, [{ n: 1 }, { n: 2 }]);
});

test('attributes are set by an event', async () => {
  server.on('events.create', () => ({ body: { run: { attributes: { a: '1' } } } }));
  const changes = [{ key: 'a', value: '1' }];
  const options = { allowReservedAttributes: true };
  assert.deepEqual(await world.runs.experimentalSetAttributes('wrun_1', changes, options), {
    attributes: { a: '1' },
  });
  const { event } = server.calls[0]!.args as { event: { eventData: unknown } };
  assert.deepEqual(event.eventData, {
    changes,
    writer: { type: 'workflow' },
    allowReservedAttributes: true,
  });
});

const page = { limit: 2, cursor: 'c', sortOrder: 'desc' } as const;
const listing = { pagination: page, resolveData: 'none' } as const;
const none = { resolveData: 'none' } as const;
const sent = { ...page, ...none };
const reads: [string, () => Promise<unknown>, object][] = [
  ['events.get', () => world.events.get('r', 'e', none), { runId: 'r', eventId: 'e', ...none }],
  ['events.list', () => world.events.list({ runId: 'r', ...listing }), { runId: 'r', ...sent }],
  [
    'events.listByCorrelationId',
    () => world.events.listByCorrelationId({ runId: 'r', correlationId: 'c', ...listing }),
    { runId: 'r', correlationId: 'c', ...sent },
  ],
  ['runs.get', () => world.runs.get('r', none), { runId: 'r', ...none }],
  ['runs.getMany', () => world.runs.getMany(['r', 's'], none), { runIds: ['r', 's'], ...none }],
  [
    'runs.list',
    () => world.runs.list({ workflowName: 'w', status: ['failed'], ...listing }),
    { workflowName: 'w', status: ['failed'], ...sent },
  ],
  ['runs.list', () => world.runs.list(), {}],
  ['runs.list', () => world.runs.list({ pagination: { cursor: '', limit: 3 } }), { limit: 3 }],
  [
    'runs.waitForTerminal',
    () => world.runs.waitForTerminalStatus('r', { timeoutMs: 60_000, ...none }),
    { runId: 'r', timeout: 25, ...none },
  ],
  [
    'runs.cancelMany',
    () => world.runs.cancelMany({ runIds: ['r'], cancelReason: 'why' }),
    { runIds: ['r'], reason: 'why' },
  ],
  ['steps.get', () => world.steps.get('r', 's', none), { runId: 'r', stepId: 's', ...none }],
  ['steps.list', () => world.steps.list({ runId: 'r', ...listing }), { runId: 'r', ...sent }],
  ['hooks.get', () => world.hooks.get('h', none), { hookId: 'h', ...none }],
  ['hooks.getByToken', () => world.hooks.getByToken('t'), { token: 't' }],
  ['hooks.list', () => world.hooks.list({ runId: 'r', ...listing }), { runId: 'r', ...sent }],
  [
    'events.createBatch',
    () =>
      world.events.createBatch('r', [{ event: { eventType: 'step_created' } }], { requestId: 'q' }),
    { runId: 'r', events: [{ event: { eventType: 'step_created' } }], requestId: 'q' },
  ],
  ['streams.list', () => world.streams.list('r'), { runId: 'r' }],
  ['streams.getInfo', () => world.streams.getInfo('r', 'n'), { runId: 'r', name: 'n' }],
  [
    'streams.getChunks',
    () => world.streams.getChunks('r', 'n', { limit: 1, cursor: 'c' }),
    { runId: 'r', name: 'n', limit: 1, cursor: 'c' },
  ],
];

for (const [method, call, args] of reads) {
  test(`${method} ${JSON.stringify(args)}`, async () => {
    server.on(method, () => ({ body: { some: 'result' } }));
    assert.deepEqual(await call(), { some: 'result' });
    assert.deepEqual(server.calls[0]!.args, args);
  });
}

test('errors name the run and the token of the call', async () => {
  server.on('runs.get', () => refused(404, 'WorkflowRunNotFoundError'));
  server.on('hooks.getByToken', () => refused(404, 'HookNotFoundError'));
  await assert.rejects(world.runs.get('wrun_9'), { name: 'WorkflowRunNotFoundError', runId: 'wrun_9' });
  await assert.rejects(world.hooks.getByToken('tok'), { name: 'HookNotFoundError', token: 'tok' });
});

test('a step without its run is a clear error', async () => {
  await assert.rejects(world.steps.get(undefined, 's'), /needs the id of the run/);
  await assert.rejects(world.events.listByCorrelationId({ correlationId: 'c' }), /needs the id/);
});

test('no runs need no call', async () => {
  assert.deepEqual(await world.runs.getMany([]), []);
  assert.equal(server.calls.length, 0);
});

test('a message is sent without the headers of its trace', async () => {
  server.on('queue.send', () => ({ body: { messageId: 'msg_1' } }));
  const headers = { traceparent: '00-1', 'x-workflow-run-id': 'r' };
  const options = { headers, delaySeconds: 0.5, idempotencyKey: 'k', deploymentId: 'd' };
  assert.deepEqual(await world.queue('__wkf_workflow_w', { runId: 'r' }, options), {
    messageId: 'msg_1',
  });
  await world.queue('__wkf_workflow_w', { runId: 'r' }, { headers: { Traceparent: '00-1' } });
  assert.deepEqual(
    server.calls.map((call) => call.args),
    [
      {
        queueName: '__wkf_workflow_w',
        payload: { runId: 'r' },
        delay: 0.5,
        idempotencyKey: 'k',
        headers: { 'x-workflow-run-id': 'r' },
        deploymentId: 'd',
      },
      { queueName: '__wkf_workflow_w', payload: { runId: 'r' } },
    ],
  );
});

test('a batch keeps its order over several requests', async () => {
  server.on('queue.sendMany', ({ args }) => ({
    body: {
      results: (args['messages'] as { payload: { n: number } }[]).map(({ payload: { n } }) =>
        n === 300
          ? { error: { status: 429, code: 'throttled', message: 'later' }, retryable: true }
          : { messageId: `msg_${n}` },
      ),
    },
  }));
  const messages = Array.from({ length: 301 }, (_, n) => ({ message: { n } }));
  const results = await world.queueBatch('__wkf_workflow_w', messages);
  assert.equal(server.calls.length, 2);
  const list = results as { messageId: string | null }[];
  const { messages: first } = server.calls[0]!.args as { messages: object[] };
  assert.deepEqual(first[0], { queueName: '__wkf_workflow_w', payload: { n: 0 } });
  assert.equal(list.length, 301);
  assert.deepEqual(list[0], { messageId: 'msg_0' });
  assert.deepEqual(list[299], { messageId: 'msg_299' });
  assert.deepEqual(list[300], { messageId: null, error: 'later', retryable: true });
});

test('writes of one stream are in order and numbered, those of two are not', async () => {
  let running = 0;
  let most = 0;
  const write = async (): Promise<{ body: null }> => {
    running += 1;
    most = Math.max(most, running);
    await new Promise((resolve) => setTimeout(resolve, 5));
    running -= 1;
    return { body: null };
  };
  server.on('streams.write', write).on('streams.writeMany', write).on('streams.close', write);
  await Promise.all([
    world.streams.write('r', 'a', 'one'),
    world.streams.write('r', 'a', new Uint8Array([2])),
    world.streams.writeMulti('r', 'a', ['three', 'four']),
    world.streams.writeMulti('r', 'a', []),
    world.streams.close('r', 'a'),
  ]);
  assert.equal(most, 1);
  const [first, second, third, fourth] = server.calls.map(({ args }) => args);
  assert.match(String(first!['writer']), /^[0-9a-f]{8,32}$/);
  assert.deepEqual([first!['sequence'], second!['sequence'], third!['sequence']], [1, 2, 3]);
  assert.equal(second!['writer'], first!['writer']);
  assert.deepEqual(first!['chunk'], new Uint8Array(Buffer.from('one')));
  assert.deepEqual(fourth, { runId: 'r', name: 'a' });
  await Promise.all([world.streams.write('r', 'b', 'x'), world.streams.write('s', 'b', 'x')]);
  assert.equal(most, 2);
});

test('a failed write does not stop the next one, and a retry keeps its number', async () => {
  server.on('streams.write', () => {
    const number = server.of('streams.write').length;
    if (number === 1) return refused(409, 'StreamClosedError');
    if (number === 2) return refused(503, 'unavailable');
    return { body: null };
  });
  const [one, two] = await Promise.allSettled([
    world.streams.write('r', 'a', 'one'),
    world.streams.write('r', 'a', 'two'),
  ]);
  assert.equal(one.status, 'rejected');
  assert.equal(two.status, 'fulfilled');
  assert.deepEqual(
    server.calls.map(({ args }) => args['sequence']),
    [1, 2, 2],
  );
});

test('many chunks go in several requests', async () => {
  server.on('streams.writeMany', () => ({ body: null }));
  await world.streams.writeMulti('r', 'a', Array.from({ length: 5_001 }, () => 'x'));
  await world.streams.writeMulti('r', 'a', [new Uint8Array(5 * 2 ** 20), new Uint8Array(5 * 2 ** 20)]);
  assert.deepEqual(
    server.calls.map(({ args }) => (args['chunks'] as unknown[]).length),
    [5_000, 1, 1, 1],
  );
});

async function collect(stream: ReadableStream<Uint8Array>): Promise<string[]> {
  const seen: string[] = [];
  for await (const chunk of stream as unknown as AsyncIterable<Uint8Array>) {
    seen.push(Buffer.from(chunk).toString());
  }
  return seen;
}

const item = (text: string): Uint8Array => encode(Buffer.from(text));

test('a reader goes on where a cut reply ended', async () => {
  server.on('streams.read', ({ args, headers }, response) => {
    assert.equal(headers.accept, 'application/cbor-seq');
    response.writeHead(200, { 'content-type': 'application/cbor-seq' });
    if (args['startIndex'] === 0) {
      // An empty chunk counts, a sign of life does not.
      response.write(Buffer.concat([item('a'), item(''), Buffer.from([0xf7]), item('b')]));
      setTimeout(() => response.destroy(), 20);
    } else if (args['startIndex'] === 3) {
      response.write(item('c'));
      setTimeout(() => response.end(), 20);
    } else {
      response.end(Buffer.concat([item('d'), Buffer.from([0xf6])]));
    }
    return undefined;
  });
  assert.deepEqual(await collect(await world.streams.get('r', 'n')), ['a', 'b', 'c', 'd']);
  assert.deepEqual(
    server.calls.map(({ args }) => args['startIndex']),
    [0, 3, 4],
  );
});

test('a negative start is fixed once', async () => {
  server
    .on('streams.getInfo', () => ({ body: { tailIndex: 9, done: false } }))
    .on('streams.read', (_, response) => {
      response.end(Buffer.from([0xf6]));
      return undefined;
    });
  await collect(await world.streams.get('r', 'n', -3));
  await collect(await world.streams.get('r', 'n', -30));
  const starts = server.of('streams.read').map(({ args }) => args['startIndex']);
  assert.deepEqual(starts, [7, 0]);
});

test('a cancelled reader closes its connection', async () => {
  let closed = false;
  server.on('streams.read', (_, response) => {
    response.write(item('a'));
    response.on('close', () => {
      closed = true;
    });
    return undefined;
  });
  const reader = (await world.streams.get('r', 'n')).getReader();
  await reader.read();
  await reader.cancel();
  await until(() => closed, 'the connection to close');
});

test('close() ends a reader', async () => {
  server.on('streams.read', (_, response) => {
    response.write(item('a'));
    return undefined;
  });
  const reader = (await world.streams.get('r', 'n')).getReader();
  await reader.read();
  const next = assert.rejects(reader.read());
  await world.close();
  await next;
});

test('generation 4 reads a stream by its name', async () => {
  server
    .on('streams.find', () => ({ body: { runId: server.of('streams.find').length < 3 ? null : 'wrun_x' } }))
    .on('streams.read', (_, response) => {
      response.end(Buffer.concat([item('a'), Buffer.from([0xf6])]));
      return undefined;
    });
  assert.deepEqual(await collect(await world.readFromStream('strm_other')), ['a']);
  const ulid = '01ARZ3NDEKTSV4RRFFQ69G5FAV';
  assert.deepEqual(await collect(await world.readFromStream(`strm_${ulid}_user_x`)), ['a']);
  assert.equal(server.of('streams.find').length, 3);
  assert.deepEqual(
    server.of('streams.read').map(({ args }) => args['runId']),
    ['wrun_x', `wrun_${ulid}`],
  );
});

test('generation 4 names the stream first', async () => {
  for (const method of ['write', 'writeMany', 'close', 'getChunks', 'getInfo']) {
    server.on(`streams.${method}`, () => ({ body: null }));
  }
  await world.writeToStream('n', 'r', 'x');
  await world.writeToStreamMulti('n', 'r', ['x']);
  await world.closeStream('n', 'r');
  await world.getStreamChunks('n', 'r');
  await world.getStreamInfo('n', 'r');
  for (const { args } of server.calls) assert.deepEqual([args['runId'], args['name']], ['r', 'n']);
});
