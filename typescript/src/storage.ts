import { defined } from './codec.js';
import { worldError } from './errors.js';
import { type Deliveries, notRegistered } from './deliveries.js';
import type { Sdk } from './sdk.js';
import type { CallOptions, Transport } from './transport.js';

// The shapes are the SDK's; its two generations differ in them, and the server checks them.

type Json = Record<string, unknown>;

export interface Pagination {
  limit?: number;
  cursor?: string;
  sortOrder?: 'asc' | 'desc';
}

export interface ReadParams {
  resolveData?: 'none' | 'all';
}

export interface ListParams extends ReadParams {
  pagination?: Pagination;
}

export interface EventRequest extends Json {
  eventType: string;
  specVersion?: number;
  correlationId?: string;
  eventData?: unknown;
}

export interface CreateParams extends ReadParams {
  requestId?: string;
  resumeId?: string;
  resumePayloadDigest?: string;
  occurredAt?: Date;
  eventCount?: number;
  sinceCursor?: string;
  skipPreload?: true;
  preloadEvents?: true;
  replayEventObserver?: (event: never) => void;
}

function page(params: ListParams | undefined): Json {
  const { limit, cursor, sortOrder } = params?.pagination ?? {};
  // The SDK's CLI starts with an empty cursor.
  const from = cursor === '' ? undefined : cursor;
  return defined({ limit, cursor: from, sortOrder, resolveData: params?.resolveData });
}

function token(event: EventRequest): string | undefined {
  const data = event.eventData as { token?: unknown } | undefined;
  return typeof data?.token === 'string' ? data.token : event.correlationId;
}

/** Generation 4 may leave the run out. Its ids are unique within a run here. */
function needsRun(sdk: Sdk, method: string, runId: string | undefined): void {
  if (runId !== undefined) return;
  const message = `${method} needs the id of the run. With the CLI, pass --runId.`;
  throw worldError(sdk, { status: 400, code: 'invalid-input', message });
}

export function createStorage(transport: Transport, sdk: Sdk, deliveries: Deliveries) {
  // What comes back is checked by the server; its type is the SDK's.
  const call = async (method: string, args: Json, options?: CallOptions): Promise<never> =>
    (await transport.call(method, args, options)) as never;

  const events = {
    async create(runId: string | null, event: EventRequest, params: CreateParams = {}) {
      const reason = notRegistered(event);
      if (runId !== null && reason !== undefined && deliveries.decline(runId, reason)) {
        throw worldError(sdk, { status: 503, code: 'unavailable', message: reason });
      }
      if (runId !== null) await deliveries.finish(runId, event.eventType, event.correlationId);
      const result = (await transport.call(
        'events.create',
        {
          runId,
          event: defined(event),
          resolveData: params.resolveData,
          // A replay reads the delta, so it needs it whole.
          resolveDelta:
            params.sinceCursor === undefined && params.eventCount === undefined ? undefined : 'all',
          resumeId: params.resumeId,
          payloadDigest: params.resumePayloadDigest,
          occurredAt: params.occurredAt,
          requestId: params.requestId,
          skipPreload: params.skipPreload,
          sinceCursor: params.sinceCursor,
          eventCount: params.eventCount,
          preloadEvents: params.preloadEvents,
        },
        { runId: runId ?? undefined, token: token(event), specVersion: event.specVersion },
      )) as { events?: never[] };
      const observe = params.replayEventObserver;
      if (observe !== undefined) for (const item of result.events ?? []) observe(item);
      return result as never;
    },

    async createBatch(
      runId: string,
      batch: { event: EventRequest; occurredAt?: Date }[],
      params: ReadParams & { requestId?: string } = {},
    ) {
      const items = batch.map(({ event, occurredAt }) =>
        defined({ event: defined(event), occurredAt }),
      );
      return call(
        'events.createBatch',
        { runId, events: items, resolveData: params.resolveData, requestId: params.requestId },
        { runId },
      );
    },

    async get(runId: string, eventId: string, params: ReadParams = {}) {
      return call('events.get', { runId, eventId, resolveData: params.resolveData }, { runId });
    },

    async list(params: ListParams & { runId: string }) {
      const { runId } = params;
      return call('events.list', { runId, ...page(params) }, { runId });
    },

    async listByCorrelationId(params: ListParams & { correlationId: string; runId?: string }) {
      const { correlationId, runId } = params;
      needsRun(sdk, 'events.listByCorrelationId', runId);
      return call('events.listByCorrelationId', { runId, correlationId, ...page(params) }, { runId });
    },
  };

  const runs = {
    async get(runId: string, params: ReadParams = {}) {
      return call('runs.get', { runId, resolveData: params.resolveData }, { runId });
    },

    async getMany(runIds: readonly string[], params: ReadParams = {}) {
      if (runIds.length === 0) return [] as never;
      return call('runs.getMany', { runIds: [...runIds], resolveData: params.resolveData });
    },

    async list(params: ListParams & { workflowName?: string; status?: string | string[] } = {}) {
      const { workflowName, status } = params;
      return call('runs.list', { workflowName, status, ...page(params) });
    },

    async waitForTerminalStatus(
      runId: string,
      params: ReadParams & { timeoutMs?: number; signal?: AbortSignal } = {},
    ) {
      const timeout = Math.min(Math.max((params.timeoutMs ?? 25_000) / 1000, 0), 25);
      return call(
        'runs.waitForTerminal',
        { runId, timeout, resolveData: params.resolveData },
        { runId, wait: timeout * 1000, signal: params.signal },
      );
    },

    async cancelMany(request: { runIds: string[]; cancelReason?: string }) {
      return call('runs.cancelMany', { runIds: request.runIds, reason: request.cancelReason });
    },

    async experimentalSetAttributes(
      runId: string,
      changes: { key: string; value: string | null }[],
      options: { allowReservedAttributes?: boolean } = {},
    ): Promise<{ attributes: Record<string, string> }> {
      const result = (await events.create(runId, {
        eventType: 'attr_set',
        specVersion: sdk.specVersion,
        eventData: {
          changes,
          writer: { type: 'workflow' },
          ...(options.allowReservedAttributes === true ? { allowReservedAttributes: true } : {}),
        },
      })) as { run?: { attributes?: Record<string, string> } };
      return { attributes: result.run?.attributes ?? {} };
    },
  };

  const steps = {
    async get(runId: string | undefined, stepId: string, params: ReadParams = {}) {
      needsRun(sdk, 'steps.get', runId);
      return call('steps.get', { runId, stepId, resolveData: params.resolveData }, { runId });
    },

    async list(params: ListParams & { runId: string }) {
      const { runId } = params;
      return call('steps.list', { runId, ...page(params) }, { runId });
    },
  };

  const hooks = {
    async get(hookId: string, params: ReadParams = {}) {
      return call('hooks.get', { hookId, resolveData: params.resolveData }, { token: hookId });
    },

    async getByToken(token: string, params: ReadParams = {}) {
      return call('hooks.getByToken', { token, resolveData: params.resolveData }, { token });
    },

    async list(params: ListParams & { runId?: string } = {}) {
      const { runId } = params;
      return call('hooks.list', { runId, ...page(params) }, { runId });
    },
  };

  return { events, runs, steps, hooks };
}
