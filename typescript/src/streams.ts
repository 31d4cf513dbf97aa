import { randomBytes } from 'node:crypto';
import type { IncomingMessage } from 'node:http';

import { SequenceReader } from './codec.js';
import { sleep } from './http.js';
import type { Transport } from './transport.js';

type Chunk = string | Uint8Array;

/** The name of a run's own stream. Readers find the run of others through the server. */
const OWN_STREAM = /^strm_([0-9A-HJKMNP-TV-Z]{26})_user/;
const MAX_CHUNKS = 5_000;
const MAX_BYTES = 8 * 2 ** 20;
const MAX_WRITERS = 1_000;

/** Numbers the writes of one stream, so that a repeated write is stored once. */
interface Writer {
  readonly id: string;
  sequence: number;
  /** Writes that have not ended. They run one after the other. */
  pending: number;
  last: Promise<unknown>;
}

function bytes(chunk: Chunk): Uint8Array {
  return typeof chunk === 'string' ? Buffer.from(chunk) : chunk;
}

function* groups(chunks: readonly Chunk[]): Generator<Uint8Array[]> {
  let group: Uint8Array[] = [];
  let size = 0;
  for (const chunk of chunks.map(bytes)) {
    if (group.length >= MAX_CHUNKS || (group.length > 0 && size + chunk.length > MAX_BYTES)) {
      yield group;
      group = [];
      size = 0;
    }
    group.push(chunk);
    size += chunk.length;
  }
  if (group.length > 0) yield group;
}

export function createStreams(transport: Transport) {
  const writers = new Map<string, Writer>();

  function writer(key: string): Writer {
    let found = writers.get(key);
    if (found === undefined) {
      // A dropped writer comes back under a new id: its numbers must not start again.
      for (const [old, { pending }] of writers) {
        if (writers.size < MAX_WRITERS) break;
        if (pending === 0) writers.delete(old);
      }
      found = { id: randomBytes(8).toString('hex'), sequence: 0, pending: 0, last: Promise.resolve() };
      writers.set(key, found);
    }
    return found;
  }

  /** Runs the calls of one stream in the order in which they were made. */
  async function ordered<T>(key: string, work: (writer: Writer) => Promise<T>): Promise<T> {
    const own = writer(key);
    own.pending += 1;
    const result = own.last.then(() => work(own));
    own.last = result.catch(() => undefined);
    try {
      return await result;
    } finally {
      own.pending -= 1;
    }
  }

  const key = (runId: string, name: string): string => `${runId}/${name}`;

  /** Who writes, as each write tells it. A first write makes the stream known by its name. */
  function origin(own: Writer, findable: boolean): Record<string, unknown> {
    own.sequence += 1;
    const first = findable && own.sequence === 1 ? { findable: true } : {};
    return { writer: own.id, sequence: own.sequence, ...first };
  }

  async function write(
    runId: string,
    name: string,
    chunk: Chunk,
    findable = false,
  ): Promise<void> {
    await ordered(key(runId, name), async (own) => {
      await transport.call(
        'streams.write',
        { runId, name, chunk: bytes(chunk), ...origin(own, findable) },
        { runId },
      );
    });
  }

  async function writeMulti(
    runId: string,
    name: string,
    chunks: readonly Chunk[],
    findable = false,
  ): Promise<void> {
    if (chunks.length === 0) return;
    await ordered(key(runId, name), async (own) => {
      for (const group of groups(chunks)) {
        await transport.call(
          'streams.writeMany',
          { runId, name, chunks: group, ...origin(own, findable) },
          { runId },
        );
      }
    });
  }

  async function close(runId: string, name: string, findable = false): Promise<void> {
    const id = key(runId, name);
    await ordered(id, (own) => {
      const first = findable && own.sequence === 0 ? { findable: true } : {};
      return transport.call('streams.close', { runId, name, ...first }, { runId });
    });
    writers.delete(id);
  }

  async function getInfo(
    runId: string,
    name: string,
  ): Promise<{ tailIndex: number; done: boolean }> {
    return (await transport.call('streams.getInfo', { runId, name }, { runId })) as never;
  }

  async function getChunks(
    runId: string,
    name: string,
    options: { limit?: number; cursor?: string } = {},
  ): Promise<never> {
    const { limit, cursor } = options;
    return (await transport.call('streams.getChunks', { runId, name, limit, cursor }, { runId })) as never;
  }

  async function list(runId: string): Promise<string[]> {
    return (await transport.call('streams.list', { runId }, { runId })) as string[];
  }

  function connect(
    runId: string,
    name: string,
    startIndex: number,
    signal: AbortSignal,
  ): Promise<IncomingMessage> {
    return transport.open(
      'streams.read',
      { runId, name, startIndex },
      'application/cbor-seq',
      { runId, signal },
    );
  }

  /** The chunks of a stream until it is closed. A cut connection is opened again. */
  async function* chunks(
    runId: string,
    name: string,
    startIndex: number,
    first: IncomingMessage,
    signal: AbortSignal,
  ): AsyncGenerator<Uint8Array> {
    let index = startIndex;
    for (let reply = first; ; reply = await connect(runId, name, index, signal)) {
      const items = new SequenceReader();
      try {
        for await (const piece of reply as AsyncIterable<Buffer>) {
          for (const item of items.push(piece)) {
            if (item === null) return;
            if (item === undefined) continue;
            index += 1;
            // An empty chunk has an index, but a reader does not see it.
            if (item.length > 0) yield item;
          }
        }
      } catch (error) {
        if (signal.aborted || error instanceof TypeError) throw error;
      } finally {
        reply.destroy();
      }
      // Not a loop without a pause where the server ends every reply at once.
      await sleep(100, signal);
    }
  }

  function readable(
    signal: AbortController,
    source: AsyncGenerator<Uint8Array>,
  ): ReadableStream<Uint8Array> {
    return new ReadableStream<Uint8Array>({
      async pull(controller) {
        const next = await source.next();
        if (next.done === true) controller.close();
        else controller.enqueue(next.value);
      },
      cancel() {
        signal.abort(new Error('the reader was cancelled'));
      },
    });
  }

  async function get(
    runId: string,
    name: string,
    startIndex = 0,
  ): Promise<ReadableStream<Uint8Array>> {
    let start = startIndex;
    if (start < 0) {
      // Fixed here: after a cut connection the end may be somewhere else.
      const { tailIndex } = await getInfo(runId, name);
      start = Math.max(0, tailIndex + 1 + start);
    }
    const controller = new AbortController();
    const first = await connect(runId, name, start, controller.signal);
    return readable(controller, chunks(runId, name, start, first, controller.signal));
  }

  /** The run that has a stream. Generation 4 reads a stream by its name alone. */
  async function runOf(name: string, signal?: AbortSignal): Promise<string | null> {
    // The streams of a run itself are named after it.
    const own = OWN_STREAM.exec(name)?.[1];
    if (own !== undefined) return `wrun_${own}`;
    const found = (await transport.call('streams.find', { name }, { signal })) as {
      runId: string | null;
    };
    return found.runId;
  }

  async function* late(
    name: string,
    startIndex: number,
    signal: AbortSignal,
  ): AsyncGenerator<Uint8Array> {
    for (let wait = 50; ; wait = Math.min(wait * 2, 1_000)) {
      const runId = await runOf(name, signal);
      if (runId !== null) {
        const start = Math.max(startIndex, 0);
        yield* chunks(runId, name, start, await connect(runId, name, start, signal), signal);
        return;
      }
      await sleep(wait, signal);
    }
  }

  async function readFromStream(
    name: string,
    startIndex = 0,
  ): Promise<ReadableStream<Uint8Array>> {
    const runId = await runOf(name);
    if (runId !== null) return get(runId, name, startIndex);
    // Nobody has written it yet.
    const controller = new AbortController();
    return readable(controller, late(name, startIndex, controller.signal));
  }

  return {
    /** Generation 5. */
    streams: {
      write: (runId: string, name: string, chunk: Chunk) => write(runId, name, chunk),
      writeMulti: (runId: string, name: string, many: readonly Chunk[]) =>
        writeMulti(runId, name, many),
      close: (runId: string, name: string) => close(runId, name),
      get,
      list,
      getChunks,
      getInfo,
    },
    /** Generation 4. */
    flat: {
      writeToStream: (name: string, runId: string, chunk: Chunk) =>
        write(runId, name, chunk, !OWN_STREAM.test(name)),
      writeToStreamMulti: (name: string, runId: string, many: Chunk[]) =>
        writeMulti(runId, name, many, !OWN_STREAM.test(name)),
      closeStream: (name: string, runId: string) => close(runId, name, !OWN_STREAM.test(name)),
      readFromStream,
      listStreamsByRunId: list,
      getStreamChunks: (
        name: string,
        runId: string,
        options?: { limit?: number; cursor?: string },
      ) => getChunks(runId, name, options),
      getStreamInfo: (name: string, runId: string) => getInfo(runId, name),
    },
  };
}
