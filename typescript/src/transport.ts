import type { IncomingMessage } from 'node:http';
import { setMaxListeners } from 'node:events';

import { decode, defined, encode } from './codec.js';
import { type CallContext, type ErrorReply, transportError, worldError } from './errors.js';
import {
  type Agents,
  createAgents,
  destroyAgents,
  exchange,
  isStaleConnection,
  readBody,
  ReplyError,
  retryAfter,
  sleep,
  TimeoutError,
} from './http.js';
import { type RedisWorldOptions, type Settings, settings } from './options.js';
import type { Sdk } from './sdk.js';
import { ulid } from './ulid.js';
import { isOlder, MINIMUM_SERVER, VERSION } from './version.js';

const CONNECT_TIMEOUT = 5_000;
const IDLE_TIMEOUT = 30_000;
const FIRST_BACKOFF = 50;
const MAX_BACKOFF = 5_000;
const DEFAULT_MAX_REPLY = 2 ** 30;

/** Replies that say "try again": the limit of requests, a restart, and proxies without an upstream. */
const RETRIED = new Set([408, 429, 502, 503, 504]);

export interface CallOptions extends CallContext {
  /** Milliseconds that the server may take on purpose, on top of the usual timeout. */
  wait?: number;
  /** Seconds to repeat the call for. Default: the option retryBudget. */
  budget?: number | undefined;
  signal?: AbortSignal | undefined;
}

interface Attempt {
  reply?: IncomingMessage;
  /** Set where the call may be repeated. */
  failure?: Error;
  /** Seconds that the server asks to wait for. */
  retryAfter?: number | undefined;
  stale?: boolean;
}

/** Calls the server, and repeats a call under one id until the server has answered. */
export class Transport {
  readonly #sdk: Sdk;
  readonly #options: RedisWorldOptions;
  readonly #agents: Agents = createAgents();
  readonly #closed = new AbortController();
  #settings: Settings | undefined;

  constructor(sdk: Sdk, options: RedisWorldOptions) {
    this.#sdk = sdk;
    this.#options = options;
    setMaxListeners(0, this.#closed.signal);
  }

  get settings(): Settings {
    this.#settings ??= settings(this.#options);
    return this.#settings;
  }

  /** Throws where the configuration lacks something. */
  check(): void {
    this.#settings ??= settings(this.#options);
  }

  /** Aborts all calls, those between two attempts included. */
  close(): void {
    this.#closed.abort(new Error('the World is closed'));
    destroyAgents(this.#agents);
  }

  async call(method: string, args: object, options: CallOptions = {}): Promise<unknown> {
    const reply = await this.#repeat(
      method,
      args,
      'application/cbor',
      options,
      async (incoming, body) => {
        if (incoming.statusCode === 204) return undefined;
        try {
          return body.length === 0 ? undefined : decode(body);
        } catch (error) {
          throw transportError(
            this.#sdk,
            'TRANSPORT',
            `the reply to ${method} from ${this.settings.url.host} is no CBOR`,
            error,
          );
        }
      },
    );
    return reply ?? undefined;
  }

  /** Opens a reply that is read while it grows. The caller ends it. */
  async open(
    method: string,
    args: object,
    accept: string,
    options: CallOptions = {},
  ): Promise<IncomingMessage> {
    return this.#repeat(method, args, accept, options, undefined);
  }

  async #repeat(
    method: string,
    args: object,
    accept: string,
    options: CallOptions,
    read: undefined,
  ): Promise<IncomingMessage>;
  async #repeat<T>(
    method: string,
    args: object,
    accept: string,
    options: CallOptions,
    read: (reply: IncomingMessage, body: Buffer) => Promise<T>,
  ): Promise<T>;
  async #repeat<T>(
    method: string,
    args: object,
    accept: string,
    options: CallOptions,
    read: ((reply: IncomingMessage, body: Buffer) => Promise<T>) | undefined,
  ): Promise<T | IncomingMessage> {
    const body = encode(defined(args));
    const id = ulid();
    const budget = options.budget ?? this.#options.retryBudget ?? 60;
    const deadline = Date.now() + budget * 1000;
    const signal =
      options.signal === undefined
        ? this.#closed.signal
        : AbortSignal.any([options.signal, this.#closed.signal]);
    let backoff = FIRST_BACKOFF;
    for (let number = 1; ; number += 1) {
      const attempt = await this.#attempt(method, body, accept, id, number, options, signal);
      if (attempt.reply !== undefined) {
        if (read === undefined) return attempt.reply;
        try {
          const bytes = await readBody(
            attempt.reply,
            this.#options.maxReplyBytes ?? DEFAULT_MAX_REPLY,
          );
          return await read(attempt.reply, bytes);
        } catch (error) {
          if (signal.aborted) throw this.#aborted(method, signal);
          if (error instanceof ReplyError && error.message.includes('larger')) {
            throw transportError(this.#sdk, 'TRANSPORT', `${method}: ${error.message}`, error);
          }
          if (!isNetworkError(error)) throw error;
          attempt.failure = transportError(
            this.#sdk,
            'TRANSPORT',
            `the reply to ${method} from ${this.settings.url.host} was lost: ${error.message}`,
            error,
          );
        }
      }
      const failure = attempt.failure ?? new Error('unreachable');
      // The other side closed an idle connection: a new one needs no wait.
      const wait =
        attempt.stale === true && number === 1
          ? 0
          : Math.max(
              backoff * (0.5 + Math.random() / 2),
              (attempt.retryAfter ?? 0) * 1000,
            );
      if (Date.now() + wait >= deadline) throw failure;
      if (wait > 0) backoff = Math.min(backoff * 2, MAX_BACKOFF);
      try {
        await sleep(wait, signal);
      } catch {
        throw this.#aborted(method, signal);
      }
    }
  }

  async #attempt(
    method: string,
    body: Uint8Array,
    accept: string,
    id: string,
    number: number,
    options: CallOptions,
    signal: AbortSignal,
  ): Promise<Attempt> {
    const { url, tokens } = this.settings;
    let reply: IncomingMessage;
    try {
      reply = await exchange({
        agents: this.#agents,
        url: new URL(`${url.pathname.replace(/\/+$/, '')}/v1/${method}`, url),
        headers: {
          accept,
          ...(tokens[0] === undefined ? {} : { authorization: `Bearer ${tokens[0]}` }),
          'content-type': 'application/cbor',
          'redis-world-client': `redis-world-typescript/${VERSION}`,
          'request-id': id,
          ...(number > 1 ? { 'request-attempt': String(number) } : {}),
        },
        body,
        connectTimeout: CONNECT_TIMEOUT,
        idleTimeout: IDLE_TIMEOUT + (options.wait ?? 0),
        signal,
      });
    } catch (error) {
      if (signal.aborted) throw this.#aborted(method, signal);
      if (!isNetworkError(error)) throw error;
      return {
        failure: transportError(
          this.#sdk,
          error instanceof TimeoutError ? 'TIMEOUT' : 'TRANSPORT',
          `cannot reach the redis-world server at ${url.origin}: ${error.message}`,
          error,
        ),
        stale: isStaleConnection(error),
      };
    }
    const status = reply.statusCode ?? 0;
    if (status < 200 || status >= 300) return this.#refused(method, reply, options);
    this.#checkServer(reply);
    return { reply };
  }

  /** Throws the SDK's error of a reply, or returns it where the call may be repeated. */
  async #refused(
    method: string,
    reply: IncomingMessage,
    call: CallContext,
  ): Promise<Attempt> {
    const status = reply.statusCode ?? 0;
    const after = retryAfter(reply.headers);
    let body: unknown;
    try {
      const bytes = await readBody(reply, 2 ** 20);
      const type = reply.headers['content-type'] ?? '';
      if (type.startsWith('application/cbor')) body = decode(bytes);
      else if (type.startsWith('application/json')) body = JSON.parse(bytes.toString());
    } catch {
      // A proxy's page, or a reply that was cut off: the status says enough.
    }
    if (!isErrorReply(body) && !RETRIED.has(status)) this.#checkServer(reply);
    const error = worldError(
      this.#sdk,
      isErrorReply(body)
        ? body
        : {
            status,
            code: 'http',
            message: `${method}: ${this.settings.url.origin} answered with HTTP status ${status}`,
            ...(after === undefined ? {} : { retryAfter: after }),
          },
      call,
    );
    if (!RETRIED.has(status)) throw error;
    return { failure: error, retryAfter: after };
  }

  #checkServer(reply: IncomingMessage): void {
    const version = reply.headers['redis-world-server'];
    const { origin } = this.settings.url;
    let message: string | undefined;
    if (typeof version !== 'string') {
      message =
        `${origin} is not a redis-world server: its reply with HTTP status ` +
        `${reply.statusCode ?? 0} has no Redis-World-Server header. Check REDIS_WORLD_SERVER_URL.`;
    } else if (isOlder(version, MINIMUM_SERVER)) {
      message =
        `The redis-world server at ${origin} has version ${version}, but the npm package ` +
        `redis-world ${VERSION} needs ${MINIMUM_SERVER} or newer. Upgrade the server, ` +
        'then the package.';
    }
    if (message === undefined) return;
    reply.destroy();
    throw worldError(this.#sdk, { status: 400, code: 'server-too-old', message });
  }

  #aborted(method: string, signal: AbortSignal): Error {
    const reason = this.#closed.signal.aborted ? 'the World is closed' : String(signal.reason);
    return transportError(this.#sdk, 'TRANSPORT', `${method} was aborted: ${reason}`);
  }
}

function isNetworkError(error: unknown): error is Error {
  if (error instanceof TimeoutError || error instanceof ReplyError) return true;
  // Errors of Node's sockets, TLS and DNS have a code; errors of this program do not.
  return error instanceof Error && typeof (error as { code?: unknown }).code === 'string';
}

function isErrorReply(body: unknown): body is ErrorReply {
  if (typeof body !== 'object' || body === null) return false;
  const { status, code, message } = body as Partial<Record<string, unknown>>;
  return typeof status === 'number' && typeof code === 'string' && typeof message === 'string';
}
