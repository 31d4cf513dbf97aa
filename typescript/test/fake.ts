import http from 'node:http';
import type { AddressInfo, Socket } from 'node:net';

import { decode, encode } from '../src/codec.js';

export interface Call {
  method: string;
  args: Record<string, unknown>;
  headers: http.IncomingHttpHeaders;
}

export interface Answer {
  status?: number;
  body?: unknown;
  headers?: Record<string, string>;
}

type Responder = (
  call: Call,
  response: http.ServerResponse,
) => Answer | undefined | Promise<Answer | undefined>;

/** A server of the HTTP protocol whose answers the tests choose. */
export class FakeServer {
  readonly calls: Call[] = [];
  readonly #responders = new Map<string, Responder>();
  readonly #server: http.Server;
  readonly #sockets = new Set<Socket>();
  version: string | undefined = '9.9.9';

  private constructor() {
    this.#server = http.createServer((request, response) => {
      void this.#answer(request, response);
    });
    this.#server.on('connection', (socket) => {
      this.#sockets.add(socket);
      socket.on('close', () => this.#sockets.delete(socket));
    });
  }

  static async start(port = 0): Promise<FakeServer> {
    const fake = new FakeServer();
    await new Promise<void>((resolve) => fake.#server.listen(port, '127.0.0.1', resolve));
    return fake;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get connections(): number {
    return this.#sockets.size;
  }

  /** Sets how a method is answered. Undefined: the responder has used the response itself. */
  on(method: string, responder: Responder): this {
    this.#responders.set(method, responder);
    return this;
  }

  of(method: string): Call[] {
    return this.calls.filter((call) => call.method === method);
  }

  async #answer(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const pieces: Buffer[] = [];
    for await (const piece of request as AsyncIterable<Buffer>) pieces.push(piece);
    const method = (request.url ?? '').replace(/^.*\/v1\//, '');
    const args = decode(Buffer.concat(pieces)) as Record<string, unknown>;
    const call: Call = { method, args, headers: request.headers };
    this.calls.push(call);
    if (this.version !== undefined) response.setHeader('redis-world-server', this.version);
    const responder = this.#responders.get(method);
    const answer =
      responder === undefined
        ? { status: 404, body: { status: 404, code: 'unknown-method', message: method } }
        : await responder(call, response);
    if (answer === undefined) return;
    for (const [name, value] of Object.entries(answer.headers ?? {})) response.setHeader(name, value);
    response.writeHead(answer.status ?? 200, { 'content-type': 'application/cbor' });
    response.end(encode(answer.body));
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

/** An error reply of the protocol. */
export function refused(status: number, code: string, more: object = {}): Answer {
  return { status, body: { status, code, message: `text of ${code}`, ...more } };
}

export type Route = (request: Request) => Promise<Response>;

/** An app that serves its routes over HTTP. */
export class FakeApp {
  readonly paths: string[] = [];
  readonly #server: http.Server;

  private constructor(route: (path: string) => Route) {
    this.#server = http.createServer((request, response) => {
      void (async () => {
        const pieces: Buffer[] = [];
        for await (const piece of request as AsyncIterable<Buffer>) pieces.push(piece);
        const path = request.url ?? '/';
        this.paths.push(path);
        const reply = await route(path)(
          new Request(`http://app${path}`, {
            method: 'POST',
            headers: Object.entries(request.headers).map(([name, value]): [string, string] => [
              name,
              String(value),
            ]),
            body: Buffer.concat(pieces),
          }),
        );
        response.writeHead(reply.status, Object.fromEntries(reply.headers));
        response.end(Buffer.from(await reply.arrayBuffer()));
      })();
    });
  }

  static async start(route: (path: string) => Route, port = 0): Promise<FakeApp> {
    const app = new FakeApp(route);
    await new Promise<void>((resolve) => app.#server.listen(port, '127.0.0.1', resolve));
    return app;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

/** Waits until `condition` holds. Rejects after ten seconds. */
export async function until(condition: () => boolean, what = 'the condition'): Promise<void> {
  const deadline = Date.now() + 10_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`timed out waiting for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
