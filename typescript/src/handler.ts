import { decode, decodeJson } from './codec.js';
import { type Deliveries, hasStep } from './deliveries.js';
import { deliveryKeys, type RedisWorldOptions } from './options.js';
import { SIGNATURE_HEADER, verify } from './signature.js';

export interface DeliveryMeta {
  attempt: number;
  queueName: never;
  messageId: never;
}

type Handler = (message: unknown, meta: DeliveryMeta) => Promise<unknown>;

interface Delivery {
  queueName: string;
  messageId: string;
  attempt: number;
  payload: unknown;
}

function reply(status: number, body: object, headers: Record<string, string> = {}): Response {
  return Response.json(body, { status, headers });
}

function isDelivery(value: unknown): value is Delivery {
  if (typeof value !== 'object' || value === null) return false;
  const { queueName, messageId, attempt } = value as Partial<Record<string, unknown>>;
  return (
    typeof queueName === 'string' && typeof messageId === 'string' && typeof attempt === 'number'
  );
}

/** Name of a step that this app lacks, if the message is one of a step. */
export function missingStep(queueName: string, payload: unknown): string | undefined {
  const fromQueue = /^__(?:[a-z][a-z0-9]*_)?wkf_step_(.+)$/s.exec(queueName)?.[1];
  const { stepName } = (payload ?? {}) as { stepName?: unknown };
  const name = fromQueue ?? (typeof stepName === 'string' ? stepName : undefined);
  if (name === undefined || name === 'health_check') return undefined;
  return hasStep(name) === false ? name : undefined;
}

/** Creates the handlers of an app's routes. They do not use `this`: core takes them off the World. */
export function createHandlerFactory(options: RedisWorldOptions, deliveries: Deliveries) {
  return function createQueueHandler(
    prefix: string,
    handler: Handler,
  ): (request: Request) => Promise<Response> {
    return async (request) => {
      const body = new Uint8Array(await request.arrayBuffer());
      if (!verify(deliveryKeys(options), request.headers.get(SIGNATURE_HEADER), body)) {
        return reply(401, {
          error:
            'The signature of the delivery is not valid. Check that the app and the sender have ' +
            'the same REDIS_WORLD_TOKEN and that their clocks agree.',
        });
      }
      let delivery: unknown;
      try {
        const json = request.headers.get('content-type')?.startsWith('application/json');
        delivery = json === true ? decodeJson(body) : decode(body);
      } catch {
        // An answer below says the same.
      }
      if (!isDelivery(delivery)) return reply(400, { error: 'The body is no delivery.' });
      const { queueName, messageId, attempt, payload } = delivery;
      if (!queueName.startsWith(prefix)) {
        return reply(404, { error: `This route serves ${prefix}*, not ${queueName}.` });
      }
      const step = missingStep(queueName, payload);
      if (step !== undefined) return reply(503, { error: `This app has no step "${step}".` });
      const { runId, workflowRunId, stepId } = (payload ?? {}) as Record<string, unknown>;
      const id = runId ?? workflowRunId;
      const run = typeof id === 'string' ? id : '';
      const active = deliveries.begin(run, typeof stepId === 'string' ? stepId : undefined);
      let result: unknown;
      try {
        result = await handler(payload, {
          attempt,
          queueName: queueName as never,
          messageId: messageId as never,
        });
      } catch (error) {
        if (active.declined !== undefined) return reply(503, { error: active.declined });
        return failed(error);
      } finally {
        deliveries.end(run, active);
      }
      if (active.declined !== undefined) return reply(503, { error: active.declined });
      const { timeoutSeconds } = (result ?? {}) as { timeoutSeconds?: unknown };
      const valid = typeof timeoutSeconds === 'number' && timeoutSeconds >= 0;
      return reply(200, valid ? { timeoutSeconds } : {});
    };
  };
}

function failed(error: unknown): Response {
  const { retryAfter } = (error ?? {}) as { retryAfter?: unknown };
  const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  return reply(
    500,
    { error: text },
    typeof retryAfter === 'number' && retryAfter >= 0
      ? { 'retry-after': String(Math.ceil(retryAfter)) }
      : {},
  );
}
