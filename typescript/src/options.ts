import { randomBytes } from 'node:crypto';

/** Options of `createWorld`. Each has an environment variable, which is read when it is needed. */
export interface RedisWorldOptions {
  /** Address of the server: `http://host:port`. Default: `REDIS_WORLD_SERVER_URL`. */
  url?: string;
  /**
   * Token of the server. Default: `REDIS_WORLD_TOKEN`. Several tokens are separated by commas:
   * the first is sent to the server, each is accepted in the signature of a delivery. A server
   * on this machine may have none.
   */
  token?: string;
  /** Deliveries that run at the same time in this process. Default: `REDIS_WORLD_CONCURRENCY`, 32. */
  concurrency?: number;
  /**
   * Address of this app, including its base path. Default: `REDIS_WORLD_BASE_URL`, else
   * `http://localhost:$PORT`, else the port on which this process listens.
   */
  baseUrl?: string;
  /** Name of this deployment, stored with each run. Default: `REDIS_WORLD_DEPLOYMENT_ID`. */
  deploymentId?: string;
  /** Namespace of the queues. Default: `WORKFLOW_QUEUE_NAMESPACE`. */
  queueNamespace?: string;
  /** Seconds that a delivery is leased for; the lease is extended while it runs. Default 60. */
  lease?: number;
  /** Seconds that a call is repeated for while the server is unreachable or busy. Default 60. */
  retryBudget?: number;
  /** Seconds that `close()` waits for running deliveries. Default 10. */
  closeTimeout?: number;
  /** Largest reply in bytes that is read from the server. Default 1 GiB. */
  maxReplyBytes?: number;
  /** Spec version for new runs, where `@workflow/world` cannot be found. */
  specVersion?: number;
}

export interface Settings {
  readonly url: URL;
  /** Tokens, the one in use first. Empty for a server without tokens. */
  readonly tokens: readonly string[];
}

export class ConfigurationError extends Error {
  override readonly name = 'RedisWorldConfigurationError';
}

function text(value: string | undefined): string | undefined {
  return value === undefined || value.trim() === '' ? undefined : value.trim();
}

/** Address and token. Throws only when they are needed: a build has no environment yet. */
export function settings(options: RedisWorldOptions): Settings {
  const address = text(options.url ?? process.env['REDIS_WORLD_SERVER_URL']);
  if (address === undefined) {
    throw new ConfigurationError(
      'REDIS_WORLD_SERVER_URL is not set. Set it to the address of `redis-world serve`, ' +
        'for example http://localhost:8470.',
    );
  }
  let url: URL;
  try {
    url = new URL(address);
  } catch {
    throw new ConfigurationError(
      `REDIS_WORLD_SERVER_URL is "${address}", which is not a URL. Example: http://localhost:8470.`,
    );
  }
  if (url.protocol !== 'http:' && url.protocol !== 'https:') {
    throw new ConfigurationError(
      `REDIS_WORLD_SERVER_URL has the scheme "${url.protocol}". Use http: or https:. ` +
        'The URL of Redis belongs to the server.',
    );
  }
  return { url, tokens: tokens(options) };
}

export function tokens(options: RedisWorldOptions): string[] {
  return (options.token ?? process.env['REDIS_WORLD_TOKEN'] ?? '')
    .split(',')
    .map((token) => token.trim())
    .filter((token) => token !== '');
}

/**
 * Keys that sign the deliveries to this app. Without a token it is a secret of this process:
 * then only the World of this process can deliver, and an open route stays closed to others.
 */
export function deliveryKeys(options: RedisWorldOptions): string[] {
  const given = tokens(options);
  if (given.length > 0) return given;
  const symbols = globalThis as unknown as Record<symbol, string | undefined>;
  return [(symbols[Symbol.for('redis-world//secret')] ??= randomBytes(32).toString('hex'))];
}

export function concurrency(options: RedisWorldOptions): number {
  const value = options.concurrency ?? Number(text(process.env['REDIS_WORLD_CONCURRENCY']) ?? 32);
  if (!Number.isInteger(value) || value < 1) {
    throw new ConfigurationError(
      `REDIS_WORLD_CONCURRENCY is ${String(options.concurrency ?? process.env['REDIS_WORLD_CONCURRENCY'])}. ` +
        'Set it to a whole number of at least 1.',
    );
  }
  return value;
}

/** Prefixes of the queues that this app serves. */
export function queuePrefixes(options: RedisWorldOptions, generation: 4 | 5): string[] {
  const namespace = text(options.queueNamespace ?? process.env['WORKFLOW_QUEUE_NAMESPACE']);
  const start = namespace === undefined ? '__wkf_' : `__${namespace}_wkf_`;
  // Generation 4 sends each step as a message of its own queue.
  return generation === 4 ? [`${start}workflow_`, `${start}step_`] : [`${start}workflow_`];
}

export function deploymentId(options: RedisWorldOptions): string {
  return (
    text(options.deploymentId ?? process.env['REDIS_WORLD_DEPLOYMENT_ID']) ?? 'dpl_redis_world'
  );
}
