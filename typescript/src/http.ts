import http from 'node:http';
import https from 'node:https';

// node:http with kept connections: fetch costs about twice the processor time per call.

export interface Agents {
  http: http.Agent;
  https: https.Agent;
}

export function createAgents(): Agents {
  const options = { keepAlive: true, keepAliveMsecs: 10_000, maxSockets: 256, maxFreeSockets: 64 };
  return { http: new http.Agent(options), https: new https.Agent(options) };
}

export function destroyAgents(agents: Agents): void {
  agents.http.destroy();
  agents.https.destroy();
}

export interface Exchange {
  agents: Agents;
  url: URL;
  headers: Record<string, string>;
  body: Uint8Array;
  /** Milliseconds until the connection must stand. */
  connectTimeout: number;
  /** Milliseconds without a byte from the other side; 0 waits for ever. */
  idleTimeout: number;
  signal?: AbortSignal | undefined;
}

export class TimeoutError extends Error {
  override readonly name = 'TimeoutError';
}

/** The reply was cut off, or it is larger than allowed. */
export class ReplyError extends Error {
  override readonly name = 'ReplyError';
}

/** Whether a reused connection was closed by the other side before it took the request. */
export function isStaleConnection(error: unknown): boolean {
  return error instanceof Error && (error as { stale?: boolean }).stale === true;
}

/** Sends a POST and resolves with the reply once its headers are there. */
export function exchange(options: Exchange): Promise<http.IncomingMessage> {
  const { url, agents, body, signal } = options;
  return new Promise((resolve, reject) => {
    const secure = url.protocol === 'https:';
    const request = (secure ? https : http).request(url, {
      method: 'POST',
      agent: secure ? agents.https : agents.http,
      headers: { ...options.headers, 'content-length': String(body.byteLength) },
      ...(signal === undefined ? {} : { signal }),
    });
    const connecting = setTimeout(() => {
      request.destroy(new TimeoutError(`no connection to ${url.host} in ${options.connectTimeout} ms`));
    }, options.connectTimeout);
    const connected = (): void => {
      clearTimeout(connecting);
    };
    request.on('socket', (socket) => {
      if (socket.connecting) socket.once(secure ? 'secureConnect' : 'connect', connected);
      else connected();
    });
    if (options.idleTimeout > 0) {
      request.setTimeout(options.idleTimeout, () => {
        request.destroy(new TimeoutError(`no reply from ${url.host} in ${options.idleTimeout} ms`));
      });
    }
    request.on('error', (error: NodeJS.ErrnoException) => {
      connected();
      const reset = error.code === 'ECONNRESET' || error.code === 'EPIPE';
      reject(Object.assign(error, { stale: request.reusedSocket && reset }));
    });
    request.on('response', resolve);
    request.end(body);
  });
}

/** The whole body of a reply. A reply that is cut off or too large raises ReplyError. */
export function readBody(reply: http.IncomingMessage, maximum: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const pieces: Buffer[] = [];
    let size = 0;
    reply.on('data', (piece: Buffer) => {
      size += piece.length;
      if (size > maximum) {
        reply.destroy(new ReplyError(`the reply is larger than ${maximum} bytes`));
        return;
      }
      pieces.push(piece);
    });
    reply.on('end', () => {
      if (reply.complete) resolve(pieces.length === 1 ? (pieces[0] ?? Buffer.alloc(0)) : Buffer.concat(pieces));
      else reject(new ReplyError('the reply was cut off'));
    });
    reply.on('error', reject);
    reply.on('close', () => {
      // After 'end' this changes nothing: the promise is settled.
      reject(new ReplyError('the reply was cut off'));
    });
  });
}

/** The `Retry-After` of a reply in seconds, if it has one. */
export function retryAfter(headers: http.IncomingHttpHeaders): number | undefined {
  const value = headers['retry-after'];
  if (value === undefined) return undefined;
  const seconds = /^\d+(\.\d+)?$/.test(value)
    ? Number(value)
    : (Date.parse(value) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, seconds) : undefined;
}

/** Waits, and rejects when the signal aborts. */
export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal?.reason instanceof Error ? signal.reason : new Error('aborted'));
    };
    if (signal?.aborted === true) {
      reject(signal.reason instanceof Error ? signal.reason : new Error('aborted'));
      return;
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener('abort', stop, { once: true });
  });
}
