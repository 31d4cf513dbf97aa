import assert from 'node:assert/strict';
import { afterEach, beforeEach, test } from 'node:test';

import * as errors5 from '@workflow/errors';
import * as errors4 from 'errors4';

import { encode } from '../src/codec.js';
import type { Sdk } from '../src/sdk.js';
import { Transport } from '../src/transport.js';
import { VERSION } from '../src/version.js';
import { FakeServer, refused, until } from './fake.js';

let server: FakeServer;
let transport: Transport;

const sdk = (generation: 4 | 5): Sdk => ({
  generation,
  specVersion: generation === 4 ? 3 : 7,
  errors: generation === 4 ? errors4 : errors5,
  detectPort: undefined,
});

beforeEach(async () => {
  server = await FakeServer.start();
  transport = new Transport(sdk(5), { url: server.url, token: 'secret', retryBudget: 5 });
});

afterEach(async () => {
  transport.close();
  await server.close();
});

test('a call has its headers and reuses its connection', async () => {
  server.on('echo', ({ args }) => ({ body: args }));
  const sent = { data: new Uint8Array([1]), when: new Date(5), none: undefined };
  for (let i = 0; i < 3; i += 1) {
    assert.deepEqual(await transport.call('echo', sent), {
      data: new Uint8Array([1]),
      when: new Date(5),
    });
  }
  assert.equal(server.connections, 1);
  const { headers } = server.calls[0]!;
  assert.equal(headers.authorization, 'Bearer secret');
  assert.equal(headers['redis-world-client'], `redis-world-typescript/${VERSION}`);
  assert.equal(headers['content-type'], 'application/cbor');
  assert.match(String(headers['request-id']), /^[0-9A-HJKMNP-TV-Z]{26}$/);
  assert.equal(headers['request-attempt'], undefined);
  assert.notEqual(headers['request-id'], server.calls[1]!.headers['request-id']);
});

test('a lost reply is asked for again under the same id', async () => {
  let number = 0;
  server.on('act', (_, response) => {
    number += 1;
    if (number === 1) response.destroy();
    else if (number === 2) {
      response.writeHead(200, { 'content-length': '100', 'content-type': 'application/cbor' });
      response.write(Buffer.from([0xa1]));
      setTimeout(() => response.destroy(), 5);
    } else return { body: { number } };
    return undefined;
  });
  assert.deepEqual(await transport.call('act', { some: 'thing' }), { number: 3 });
  const ids = server.calls.map(({ headers }) => headers['request-id']);
  assert.equal(new Set(ids).size, 1);
  assert.deepEqual(
    server.calls.map(({ headers }) => headers['request-attempt']),
    [undefined, '2', '3'],
  );
  assert.deepEqual(server.calls[2]!.args, { some: 'thing' });
});

for (const status of [408, 429, 502, 503, 504]) {
  test(`status ${status} is tried again`, async () => {
    server.on('act', () => (server.calls.length < 3 ? refused(status, 'busy') : { body: 'done' }));
    assert.equal(await transport.call('act', {}), 'done');
    assert.equal(server.calls.length, 3);
  });
}

test('Retry-After is waited for', async () => {
  server.on('act', () =>
    server.calls.length < 2
      ? { ...refused(429, 'throttled', { retryAfter: 1 }), headers: { 'retry-after': '1' } }
      : { body: 'done' },
  );
  const start = performance.now();
  assert.equal(await transport.call('act', {}), 'done');
  assert.ok(performance.now() - start >= 990);
});

test('the budget ends the tries, with the last error', async () => {
  server.on('act', () => refused(503, 'unavailable'));
  await assert.rejects(transport.call('act', {}, { budget: 0.3 }), {
    name: 'WorkflowWorldError',
    status: 503,
    code: 'unavailable',
  });
  assert.ok(server.calls.length >= 2);
});

test('a server that is down is an error that the runtime redelivers on', async () => {
  await server.close();
  await assert.rejects(
    transport.call('act', {}, { budget: 0.2 }),
    (error: errors5.WorkflowWorldError) => {
      assert.ok(errors5.WorkflowWorldError.is(error));
      assert.equal(error.code, 'TRANSPORT');
      assert.equal(error.status, 503);
      assert.match(error.message, /cannot reach the redis-world server at http:\/\/127\.0\.0\.1/);
      return true;
    },
  );
  server = await FakeServer.start();
});

test('close() ends calls that wait and calls between two tries', async () => {
  server.on('wait', () => undefined).on('busy', () => refused(503, 'unavailable'));
  const calls = Promise.allSettled([transport.call('wait', {}), transport.call('busy', {})]);
  await until(() => server.of('wait').length === 1 && server.of('busy').length >= 2);
  transport.close();
  for (const result of await calls) {
    assert.equal(result.status, 'rejected');
    assert.match(String(result.reason), /the World is closed/);
  }
});

test('a signal ends a call', async () => {
  server.on('wait', () => undefined);
  const controller = new AbortController();
  const call = transport.call('wait', {}, { signal: controller.signal });
  const rejected = assert.rejects(call, /aborted/);
  await until(() => server.calls.length === 1);
  controller.abort(new Error('enough'));
  await rejected;
});

test('a reply that is too large is an error, not memory', async () => {
  transport.close();
  transport = new Transport(sdk(5), { url: server.url, token: 't', maxReplyBytes: 1_000 });
  server.on('act', () => ({ body: new Uint8Array(2_000) }));
  await assert.rejects(transport.call('act', {}), /larger than 1000 bytes/);
  assert.equal(server.calls.length, 1);
});

test('an old server is named, and what to upgrade', async () => {
  server.version = '0.0.1';
  server.on('act', () => ({ body: 1 }));
  await assert.rejects(transport.call('act', {}), /has version 0\.0\.1.*Upgrade the server/);
});

test('another server is named', async () => {
  server.version = undefined;
  server.on('act', () => ({ body: 1 })).on('page', (_, response) => {
    response.writeHead(404, { 'content-type': 'text/html' });
    response.end('<html>');
    return undefined;
  });
  await assert.rejects(transport.call('act', {}), /is not a redis-world server/);
  await assert.rejects(transport.call('page', {}), /is not a redis-world server/);
});

test('the path of the address is kept', async () => {
  transport.close();
  transport = new Transport(sdk(5), { url: `${server.url}/redis/`, token: 't' });
  server.on('act', () => ({ body: 'done' }));
  assert.equal(await transport.call('act', {}), 'done');
});

test('a server without tokens gets none', async () => {
  transport.close();
  transport = new Transport(sdk(5), { url: server.url, token: '' });
  server.on('act', () => ({ body: 'done' }));
  assert.equal(await transport.call('act', {}), 'done');
  assert.equal(server.calls[0]!.headers.authorization, undefined);
});

test('missing settings are named', async () => {
  await assert.rejects(new Transport(sdk(5), { token: 't' }).call('act', {}), /REDIS_WORLD_SERVER_URL/);
  await assert.rejects(
    new Transport(sdk(5), { url: 'redis://localhost', token: 't' }).call('act', {}),
    /scheme "redis:"/,
  );
});

const kinds: [number, string, string][] = [
  [409, 'conflict', 'EntityConflictError'],
  [422, 'conflict', 'EntityConflictError'],
  [410, 'run-expired', 'RunExpiredError'],
  [412, 'precondition', 'PreconditionFailedError'],
  [425, 'TooEarlyError', 'TooEarlyError'],
  [404, 'WorkflowRunNotFoundError', 'WorkflowRunNotFoundError'],
  [404, 'HookNotFoundError', 'HookNotFoundError'],
  [404, 'WorkflowWorldError', 'WorkflowWorldError'],
  [400, 'RunNotSupportedError', 'RunNotSupportedError'],
  [400, 'invalid-input', 'WorkflowWorldError'],
  [409, 'StreamClosedError', 'WorkflowWorldError'],
  [401, 'unauthorized', 'WorkflowWorldError'],
  [500, 'WorkflowWorldError', 'WorkflowWorldError'],
];

for (const generation of [4, 5] as const) {
  const classes = (generation === 4 ? errors4 : errors5) as unknown as Record<string, new () => Error>;
  for (const [status, code, name] of kinds) {
    test(`${status} ${code} is ${name} of generation ${generation}`, async () => {
      transport.close();
      transport = new Transport(sdk(generation), { url: server.url, token: 't' });
      server.on('act', () => refused(status, code, { retryAfter: 3, reason: 'duplicate' }));
      await assert.rejects(transport.call('act', {}, { runId: 'wrun_1', token: 'tok' }), (error) => {
        assert.ok(error instanceof classes[name]!);
        const { retryAfter, reason, status: got } = error as never as Record<string, unknown>;
        assert.deepEqual([error.name, got, retryAfter, reason], [name, status, 3, 'duplicate']);
        assert.equal((error as never as { code: string }).code, code);
        return true;
      });
    });
  }
}

test('throttling beyond the budget is a ThrottleError with its time', async () => {
  server.on('act', () => refused(429, 'throttled', { retryAfter: 7 }));
  await assert.rejects(transport.call('act', {}, { budget: 0 }), {
    name: 'ThrottleError',
    retryAfter: 7,
    status: 429,
  });
});

test('errors have their names without the SDK too', async () => {
  transport.close();
  transport = new Transport({ ...sdk(5), errors: {} }, { url: server.url, token: 't' });
  server.on('act', () => refused(410, 'run-expired'));
  await assert.rejects(transport.call('act', {}), { name: 'RunExpiredError', status: 410 });
});

test('a stale connection is replaced without a wait', async () => {
  let first = true;
  server.on('act', (_, response) => {
    const { socket } = response;
    if (first) {
      first = false;
      response.writeHead(200, { 'content-type': 'application/cbor' });
      response.end(encode('one'));
      return undefined;
    }
    if (server.of('act').length === 2) {
      socket?.destroy();
      return undefined;
    }
    return { body: 'two' };
  });
  assert.equal(await transport.call('act', {}), 'one');
  assert.equal(await transport.call('act', {}), 'two');
  assert.equal(server.of('act').length, 3);
});
