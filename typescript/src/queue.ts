import { defined } from './codec.js';
import { deploymentId, type RedisWorldOptions } from './options.js';
import type { Transport } from './transport.js';

export interface QueueOptions {
  deploymentId?: string;
  idempotencyKey?: string;
  headers?: Record<string, string>;
  delaySeconds?: number;
}

type BatchResult =
  | { messageId: string | null; error?: undefined }
  | { messageId: null; error: string; retryable: boolean };

const MAX_BATCH = 256;

// A trace differs in each message. Stored, it would keep equal wake-ups from being merged.
const TRACE = new Set(['traceparent', 'tracestate', 'baggage', 'b3']);

function args(queueName: string, payload: unknown, options: QueueOptions = {}): object {
  const headers = Object.entries(options.headers ?? {}).filter(
    ([name]) => !TRACE.has(name.toLowerCase()),
  );
  return defined({
    queueName,
    payload,
    delay: options.delaySeconds,
    idempotencyKey: options.idempotencyKey,
    headers: headers.length === 0 ? undefined : Object.fromEntries(headers),
    deploymentId: options.deploymentId,
  });
}

export function createQueue(transport: Transport, options: RedisWorldOptions) {
  return {
    async getDeploymentId(): Promise<string> {
      return deploymentId(options);
    },

    async queue(
      queueName: string,
      message: unknown,
      opts?: QueueOptions,
    ): Promise<{ messageId: never }> {
      return (await transport.call('queue.send', args(queueName, message, opts))) as never;
    },

    async queueBatch(
      queueName: string,
      messages: readonly { message: unknown; opts?: QueueOptions }[],
    ): Promise<never> {
      const results: BatchResult[] = [];
      for (let start = 0; start < messages.length; start += MAX_BATCH) {
        const part = messages.slice(start, start + MAX_BATCH);
        const reply = (await transport.call('queue.sendMany', {
          messages: part.map(({ message, opts }) => args(queueName, message, opts)),
        })) as {
          results: (
            | { messageId: string | null; error?: null }
            | { error: { message: string }; retryable: boolean }
          )[];
        };
        for (const result of reply.results) {
          results.push(
            'retryable' in result
              ? { messageId: null, error: result.error.message, retryable: result.retryable }
              : { messageId: result.messageId },
          );
        }
      }
      return results as never;
    },
  };
}
