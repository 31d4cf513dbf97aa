import { randomBytes } from 'node:crypto';

import { BaseUrl } from './base-url.js';
import { countBytes, defined, encode, encodeJson } from './codec.js';
import {
  type Agents,
  createAgents,
  destroyAgents,
  exchange,
  readBody,
  retryAfter,
  sleep,
} from './http.js';
import { log } from './log.js';
import {
  concurrency,
  ConfigurationError,
  deliveryKeys,
  queuePrefixes,
  type RedisWorldOptions,
} from './options.js';
import { RunLimit } from './run-limit.js';
import type { Sdk } from './sdk.js';
import { sign, SIGNATURE_HEADER } from './signature.js';
import type { Transport } from './transport.js';

const POLL_SECONDS = 20;
const MAX_CLAIM = 64;
const MAX_PAUSE = 30_000;
const SCARCE_WAIT = 25;
const MAX_ANSWER = 2 ** 20;

// Tools around an app, such as loggers and the SDK's own tests, read deliveries as JSON. Beyond
// this size its base64 costs too much.
const MAX_JSON_BYTES = 256 * 1024;

interface Message {
  messageId: string;
  queueName: string;
  payload: unknown;
  headers?: Record<string, string>;
  deploymentId?: string;
  attempt: number;
  postponed?: number;
  handle: string;
}

/** A message that this process has leased. */
interface Held {
  readonly message: Message;
  readonly abort: AbortController;
  timer?: NodeJS.Timeout;
  settled: boolean;
}

/** Takes messages from the server and posts each to the app's own route. */
export class Puller {
  readonly #transport: Transport;
  readonly #options: RedisWorldOptions;
  readonly #sdk: Sdk;
  readonly #baseUrl: BaseUrl;
  readonly #lease: number;
  readonly #worker = randomBytes(8).toString('hex');
  readonly #held = new Map<string, Held>();
  readonly #limit = new RunLimit();
  readonly #stop = new AbortController();
  #agents: Agents | undefined;
  #loop: Promise<void> | undefined;
  #wake: (() => void) | undefined;
  #unreachable = false;
  /** Milliseconds to pause for while the app does not answer. */
  #pause = 0;

  constructor(transport: Transport, options: RedisWorldOptions, sdk: Sdk) {
    this.#transport = transport;
    this.#options = options;
    this.#sdk = sdk;
    this.#baseUrl = new BaseUrl(options, sdk);
    this.#lease = options.lease ?? 60;
  }

  /** Starts to take messages. Later calls do nothing. */
  start(): void {
    if (this.#loop !== undefined || this.#stop.signal.aborted) return;
    const slots = concurrency(this.#options);
    this.#agents = createAgents();
    this.#agents.http.maxSockets = Infinity;
    this.#agents.https.maxSockets = Infinity;
    this.#loop = this.#run(slots);
  }

  /** Stops to take messages, waits for those that run, and releases the rest. */
  async close(): Promise<void> {
    if (this.#stop.signal.aborted) return;
    this.#stop.abort(new Error('the World is closed'));
    this.#wake?.();
    await this.#loop;
    const deadline = Date.now() + (this.#options.closeTimeout ?? 10) * 1000;
    const running = (): Held[] => [...this.#held.values()];
    await Promise.all(running().filter((held) => this.#limit.isWaiting(held)).map((held) => this.#release(held)));
    while (this.#held.size > 0 && Date.now() < deadline) await sleep(20);
    await Promise.all(running().map((held) => this.#release(held)));
    if (this.#agents !== undefined) destroyAgents(this.#agents);
  }

  async #run(slots: number): Promise<void> {
    const topics = queuePrefixes(this.#options, this.#sdk.generation);
    let failures = 0;
    const stopped = (): boolean => this.#stop.signal.aborted;
    while (!stopped()) {
      const free = slots - this.#held.size;
      if (free <= 0) {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
        continue;
      }
      try {
        // While most slots are in use, a poll for each that becomes free would cost a request each.
        if (free < slots / 4) await sleep(SCARCE_WAIT, this.#stop.signal);
        if (this.#pause > 0) await sleep(this.#pause, this.#stop.signal);
        const { messages } = (await this.#transport.call(
          'queue.claim',
          {
            topics,
            limit: Math.min(slots - this.#held.size, MAX_CLAIM),
            lease: this.#lease,
            wait: POLL_SECONDS,
            worker: this.#worker,
          },
          { wait: POLL_SECONDS * 1000, budget: 20, signal: this.#stop.signal },
        )) as { messages: Message[] };
        if (failures > 0) log('info', 'taking messages again', { failures });
        failures = 0;
        for (const message of messages) this.#accept(message);
      } catch (error) {
        if (stopped()) break;
        failures += 1;
        if (failures === 1) log('error', 'cannot take messages, trying again', { error: text(error) });
        const pause = Math.min(1_000 * 2 ** Math.min(failures - 1, 5), MAX_PAUSE);
        await sleep(pause, this.#stop.signal).catch(() => undefined);
      }
    }
  }

  #accept(message: Message): void {
    const held: Held = { message, abort: new AbortController(), settled: false };
    this.#held.set(message.handle, held);
    held.timer = setInterval(() => void this.#extend(held), (this.#lease * 1000) / 3);
    if (this.#stop.signal.aborted) {
      void this.#release(held);
      return;
    }
    const { runId, workflowRunId, stepId } = (message.payload ?? {}) as Record<string, unknown>;
    const run = runId ?? workflowRunId;
    this.#limit.add(
      held,
      typeof run === 'string' ? run : undefined,
      typeof stepId === 'string' ? 'step' : 'replay',
      () => this.#deliver(held),
    );
  }

  async #extend(held: Held): Promise<void> {
    try {
      const { done } = (await this.#transport.call(
        'queue.extend',
        { handle: held.message.handle, lease: this.#lease },
        { budget: this.#lease / 2 },
      )) as { done: boolean };
      if (done || held.settled) return;
      clearInterval(held.timer);
      log('warn', 'lost the lease of a message that still runs', ids(held.message));
    } catch (error) {
      if (!held.settled) log('warn', 'cannot extend a lease', { ...ids(held.message), error: text(error) });
    }
  }

  async #deliver(held: Held): Promise<void> {
    const { message } = held;
    let status: number;
    let answer: Buffer;
    let after: number | undefined;
    try {
      const { queueName, messageId, attempt, payload, headers, deploymentId } = message;
      const postponed = message.postponed ?? 0;
      const delivery = defined({
        queueName,
        messageId,
        attempt,
        payload,
        headers,
        deploymentId,
        postponed,
      });
      const json = countBytes(payload) < MAX_JSON_BYTES;
      const body = json ? encodeJson(delivery) : encode(delivery);
      const url = await this.#baseUrl.route(queueName);
      const reply = await exchange({
        agents: this.#agents ?? createAgents(),
        url,
        headers: {
          'content-type': json ? 'application/json' : 'application/cbor',
          [SIGNATURE_HEADER]: sign(deliveryKeys(this.#options), body),
        },
        body,
        connectTimeout: 10_000,
        // A step may take hours.
        idleTimeout: 0,
        signal: held.abort.signal,
      });
      status = reply.statusCode ?? 0;
      after = retryAfter(reply.headers);
      answer = await readBody(reply, MAX_ANSWER);
    } catch (error) {
      if (held.settled) return;
      await this.#unanswered(held, error);
      return;
    }
    if (this.#unreachable) log('info', 'the app answers again');
    this.#unreachable = false;
    this.#pause = 0;
    await this.#answered(held, status, answer, after);
  }

  async #answered(
    held: Held,
    status: number,
    answer: Buffer,
    after: number | undefined,
  ): Promise<void> {
    const { handle } = held.message;
    if (status >= 200 && status < 300) {
      const seconds = timeoutSeconds(answer);
      await this.#settle(held, 'queue.ack', {
        handle,
        followUp: seconds === undefined ? undefined : { delay: seconds },
      });
    } else if (status === 404 || status === 503) {
      await this.#settle(held, 'queue.postpone', { handle, delay: after });
    } else if (status === 409 || status === 410 || status === 422) {
      log('warn', 'the app refused a message, which is done', { ...ids(held.message), status });
      await this.#settle(held, 'queue.ack', { handle });
    } else {
      const error = `HTTP status ${status}: ${answer.toString().slice(0, 1_000)}`;
      log('warn', 'a delivery failed', { ...ids(held.message), error });
      if (status === 401 || status === 403 || (status >= 300 && status < 400)) {
        log('warn', 'the app must let requests to /.well-known/workflow/ through', { status });
      }
      await this.#settle(held, 'queue.retry', { handle, error, retryAfter: after });
    }
  }

  /** The app does not listen, or it ended in the middle of the request. */
  async #unanswered(held: Held, error: unknown): Promise<void> {
    const { handle } = held.message;
    const code = (error as { code?: unknown }).code;
    this.#baseUrl.forget();
    if (code === 'ECONNREFUSED' || error instanceof ConfigurationError) {
      if (!this.#unreachable) log('warn', 'the app does not answer, waiting for it', { error: text(error) });
      this.#unreachable = true;
      this.#pause = Math.min(Math.max(this.#pause * 2, 250), MAX_PAUSE);
      await this.#settle(held, 'queue.postpone', { handle });
      return;
    }
    log('warn', 'a delivery failed', { ...ids(held.message), error: text(error) });
    await this.#settle(held, 'queue.retry', { handle, error: text(error) });
  }

  async #release(held: Held): Promise<void> {
    if (held.settled) return;
    const settling = this.#settle(held, 'queue.release', { handle: held.message.handle }, 5);
    held.abort.abort(new Error('the World is closed'));
    await settling;
  }

  async #settle(held: Held, method: string, args: object, budget?: number): Promise<void> {
    if (held.settled) return;
    held.settled = true;
    clearInterval(held.timer);
    try {
      const { done } = (await this.#transport.call(method, args, { budget })) as { done: boolean };
      if (!done) log('warn', `${method}: the lease was lost`, ids(held.message));
    } catch (error) {
      // The lease runs out, and the message is delivered again.
      log('error', `${method} failed`, { ...ids(held.message), error: text(error) });
    } finally {
      this.#held.delete(held.message.handle);
      this.#limit.remove(held);
      this.#wake?.();
    }
  }
}

function text(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function ids(message: Message): Record<string, string | number> {
  return { queue: message.queueName, message: message.messageId, attempt: message.attempt };
}

function timeoutSeconds(answer: Buffer): number | undefined {
  try {
    const { timeoutSeconds: seconds } = JSON.parse(answer.toString()) as { timeoutSeconds?: unknown };
    return typeof seconds === 'number' && seconds >= 0 ? seconds : undefined;
  } catch {
    return undefined;
  }
}
