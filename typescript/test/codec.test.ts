import assert from 'node:assert/strict';
import { test } from 'node:test';

import { countBytes, decode, decodeJson, encode, encodeJson, SequenceReader } from '../src/codec.js';

test('bytes are plain byte strings and come back as Uint8Array', () => {
  const encoded = encode({ data: new Uint8Array([1, 2, 3]) });
  assert.ok(Buffer.from(encoded).includes(Buffer.from([0x43, 1, 2, 3])));
  const { data } = decode(encoded) as { data: Uint8Array };
  assert.equal(data.constructor, Uint8Array);
  assert.deepEqual([...data], [1, 2, 3]);
  // Its own memory: a reply of many MB is not kept for three bytes.
  assert.equal(data.buffer.byteLength, 3);
});

test('maps are plain objects without extensions', () => {
  const encoded = encode({ one: 1 });
  assert.equal(encoded[0]! >> 5, 5);
  assert.deepEqual(decode(encoded), { one: 1 });
});

test('dates keep their milliseconds, as number and as text', () => {
  for (let i = 0; i < 2_000; i += 1) {
    const date = new Date(1_700_000_000_000 + i * 7_919);
    assert.deepEqual(decode(encode(date)), date);
  }
  const text = '2026-01-01T00:00:00.123Z';
  const tagged = Buffer.concat([Buffer.from([0xc0, 0x78, text.length]), Buffer.from(text)]);
  assert.deepEqual(decode(tagged), new Date(text));
});

test('64-bit integers are numbers', () => {
  const bytes = Buffer.from('1b0000018bcfe56800', 'hex');
  assert.equal(decode(bytes), 1_700_000_000_000);
  assert.equal(decode(encode(2 ** 53 - 1)), 2 ** 53 - 1);
});

test('JSON keeps bytes, and only bytes', () => {
  const value = {
    list: [new Uint8Array([0, 255]), new Uint8Array()],
    like: { base64: 1 },
    more: { base64: 'AA==', other: 1 },
    none: null,
    nested: { a: { b: new Uint8Array([7]) } },
  };
  assert.deepEqual(decodeJson(encodeJson(value)), value);
  assert.match(Buffer.from(encodeJson(value)).toString(), /"list":\[\{"base64":"AP8="\},/);
  assert.equal(countBytes(value), 3);
});

test('a sequence may be cut anywhere', () => {
  const long = Buffer.alloc(70_000, 7);
  const header = Buffer.from([0x5a, 0, 1, 0x11, 0x70]);
  const sequence = Buffer.concat([
    Buffer.from([0x41, 9, 0xf7, 0x40, 0x58, 24]),
    Buffer.alloc(24, 5),
    header,
    long,
    Buffer.from([0xf6]),
  ]);
  for (const size of [1, 2, 3, 1_000, sequence.length]) {
    const reader = new SequenceReader();
    const items = [];
    for (let at = 0; at < sequence.length; at += size) {
      items.push(...reader.push(sequence.subarray(at, at + size)));
    }
    assert.deepEqual(
      items.map((item) => (item instanceof Uint8Array ? item.length : item)),
      [1, undefined, 0, 24, 70_000, null],
    );
    assert.deepEqual(items[4], new Uint8Array(long));
  }
});

test('a sequence with another item is refused', () => {
  assert.throws(() => new SequenceReader().push(Buffer.from([0x61, 0x61])), /unknown type 0x61/);
});
