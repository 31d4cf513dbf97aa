import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { test } from 'node:test';

import { sign, verify } from '../src/signature.js';

const body = Buffer.from('body');
const now = 1_700_000_000_000;

test('the signature is the documented one', () => {
  const hex = createHmac('sha256', 'token').update('1700000000.body').digest('hex');
  assert.equal(sign(['token'], body, now), `t=1700000000,v1=${hex}`);
});

test('any signature may fit any token', () => {
  const header = sign(['old', 'new'], body, now);
  assert.ok(verify(['new'], header, body, now));
  assert.ok(verify(['other', 'old'], header, body, now));
  assert.ok(!verify(['other'], header, body, now));
});

test('the window is 300 seconds in both directions', () => {
  const header = sign(['token'], body, now);
  assert.ok(verify(['token'], header, body, now + 300_000));
  assert.ok(verify(['token'], header, body, now - 300_000));
  assert.ok(!verify(['token'], header, body, now + 301_000));
  assert.ok(!verify(['token'], header, body, now - 301_000));
});

test('a changed body, a changed time and odd headers are refused', () => {
  const header = sign(['token'], body, now);
  assert.ok(!verify(['token'], header, Buffer.from('Body'), now));
  assert.ok(!verify(['token'], header.replace('t=1700000000', 't=1700000001'), body, now));
  for (const odd of [null, '', 't=', 't=1700000000', 'v1=00', 't=x,v1=y', 't=1700000000,v1=00']) {
    assert.ok(!verify(['token'], odd, body, now), String(odd));
  }
});
