import { Encoder } from 'cbor-x';

// Records and tagged byte arrays are extensions of cbor-x that other decoders do not read.
// Without int64AsNumber every integer above 32 bits, a time in ms for example, becomes a BigInt.
// A byte string is copied out of the reply: a view would keep the whole reply in memory.
const codec = new Encoder({
  useRecords: false,
  mapsAsObjects: true,
  tagUint8Array: false,
  int64AsNumber: true,
  copyBuffers: true,
} as ConstructorParameters<typeof Encoder>[0]);

export function encode(value: unknown): Uint8Array {
  return codec.encode(value);
}

export function decode(bytes: Uint8Array): unknown {
  // A Buffer would make every byte string in the result a Buffer too.
  return codec.decode(new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength));
}

/** Text of a value in the JSON of the protocol: bytes are `{"base64": "..."}`. */
export function encodeJson(value: unknown): Uint8Array {
  return Buffer.from(
    JSON.stringify(value, (_, item: unknown) =>
      item instanceof Uint8Array ? { base64: Buffer.from(item).toString('base64') } : item,
    ),
  );
}

export function decodeJson(bytes: Uint8Array): unknown {
  return JSON.parse(Buffer.from(bytes).toString(), (_, item: unknown) => {
    if (typeof item !== 'object' || item === null) return item;
    const { base64, ...rest } = item as { base64?: unknown };
    if (typeof base64 !== 'string' || Object.keys(rest).length > 0) return item;
    return new Uint8Array(Buffer.from(base64, 'base64'));
  });
}

/** Number of bytes in the byte strings of a value. */
export function countBytes(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  if (value instanceof Uint8Array) return value.length;
  return Object.values(value).reduce<number>((sum, item) => sum + countBytes(item), 0);
}

/** A copy of `fields` without the names whose value is undefined. */
export function defined<T extends object>(fields: T): T {
  const entries = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as T;
}

/** Splits a sequence of CBOR items that arrives in pieces. */
export class SequenceReader {
  #rest: Buffer = Buffer.alloc(0);

  /**
   * The items that are complete after `piece`. Only the items of a stream's reply are known:
   * byte strings, null (closed) and undefined (alive).
   */
  push(piece: Uint8Array): (Uint8Array | null | undefined)[] {
    let buffer = this.#rest.length === 0 ? Buffer.from(piece.buffer, piece.byteOffset, piece.length)
      : Buffer.concat([this.#rest, piece]);
    const items: (Uint8Array | null | undefined)[] = [];
    for (;;) {
      const first = buffer[0];
      if (first === undefined) break;
      if (first === 0xf6 || first === 0xf7) {
        items.push(first === 0xf6 ? null : undefined);
        buffer = buffer.subarray(1);
        continue;
      }
      const header = byteStringHeader(buffer, first);
      if (header === undefined || buffer.length < header.start + header.length) break;
      const end = header.start + header.length;
      items.push(new Uint8Array(buffer.subarray(header.start, end)));
      buffer = buffer.subarray(end);
    }
    // A copy: the piece belongs to the socket's buffer.
    this.#rest = Buffer.from(buffer);
    return items;
  }
}

function byteStringHeader(
  buffer: Buffer,
  first: number,
): { start: number; length: number } | undefined {
  const size = first & 0x1f;
  if (first >> 5 !== 2 || size > 27) {
    throw new TypeError(`a stream's reply has an item of unknown type 0x${first.toString(16)}`);
  }
  if (size < 24) return { start: 1, length: size };
  const width = 2 ** (size - 24);
  if (buffer.length < 1 + width) return undefined;
  const length = width === 8 ? Number(buffer.readBigUInt64BE(1)) : buffer.readUIntBE(1, width);
  return { start: 1 + width, length };
}
