import type { Sdk } from './sdk.js';

/** Body of an error reply. */
export interface ErrorReply {
  status: number;
  code: string;
  message: string;
  retryAfter?: number;
  reason?: string;
}

/** An error as both generations read it: by name, status, code and retryAfter. */
export interface WorldError extends Error {
  status?: number;
  code?: string;
  retryAfter?: number;
  reason?: string;
}

type ErrorClass = new (...args: never[]) => Error;

class PlainError extends Error {
  constructor(name: string, message: string) {
    super(message);
    this.name = name;
  }
}

/** Names the call, for errors whose constructor takes an id instead of a message. */
export interface CallContext {
  runId?: string | undefined;
  token?: string | undefined;
  specVersion?: number | undefined;
}

function name(reply: ErrorReply): string {
  if (reply.code === 'conflict') return 'EntityConflictError';
  if (reply.code === 'WorkflowRunNotFoundError' || reply.code === 'HookNotFoundError') {
    return reply.code;
  }
  if (reply.code === 'RunNotSupportedError') return reply.code;
  switch (reply.status) {
    case 410:
      return 'RunExpiredError';
    case 412:
      return 'PreconditionFailedError';
    case 425:
      return 'TooEarlyError';
    case 429:
      return 'ThrottleError';
    default:
      return 'WorkflowWorldError';
  }
}

function construct(sdk: Sdk, kind: string, reply: ErrorReply, call: CallContext): Error {
  const found = sdk.errors[kind];
  if (typeof found !== 'function') return new PlainError(kind, reply.message);
  const build = found as ErrorClass as new (...args: unknown[]) => Error;
  const { retryAfter, status, code, message } = reply;
  switch (kind) {
    case 'WorkflowRunNotFoundError':
      return new build(call.runId ?? '');
    case 'HookNotFoundError':
      return new build(call.token ?? '');
    case 'RunNotSupportedError':
      return new build(call.specVersion ?? sdk.specVersion + 1, sdk.specVersion);
    case 'TooEarlyError':
    case 'ThrottleError':
    case 'PreconditionFailedError':
      return new build(message, retryAfter === undefined ? {} : { retryAfter });
    case 'WorkflowWorldError':
      return new build(message, { status, code, ...(retryAfter === undefined ? {} : { retryAfter }) });
    default:
      return new build(message);
  }
}

/** The SDK's error for a reply. Its class is the app's own, so that `instanceof` holds too. */
export function worldError(sdk: Sdk, reply: ErrorReply, call: CallContext = {}): WorldError {
  const error: WorldError = construct(sdk, name(reply), reply, call);
  error.status = reply.status;
  error.code = reply.code;
  if (reply.retryAfter !== undefined) error.retryAfter = reply.retryAfter;
  if (reply.reason !== undefined) error.reason = reply.reason;
  return error;
}

/** The server did not answer. The runtimes redeliver on these codes. */
export function transportError(
  sdk: Sdk,
  code: 'TRANSPORT' | 'TIMEOUT',
  message: string,
  cause?: unknown,
): WorldError {
  const error = worldError(sdk, { status: 503, code, message });
  if (cause !== undefined) Object.defineProperty(error, 'cause', { value: cause });
  return error;
}
