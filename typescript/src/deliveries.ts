import * as zlib from 'node:zlib';

// Workflows live inside a bundle that only the runtime reads, so the World cannot list them.
// The runtime says what it lacks by failing the run. The World turns that into "not here":
// another process, or a newer deployment of the app, may have the workflow.

const UNKNOWN = /(Workflow|Step) \\?"[^"]*" is not registered in the current deployment/;

/** Replays that run in this process, by run. */
export class Deliveries {
  readonly #active = new Map<string, Set<{ declined?: string }>>();

  /** Registers a delivery until `end` is called. */
  begin(runId: string): { declined?: string } {
    const delivery = {};
    const set = this.#active.get(runId) ?? new Set();
    set.add(delivery);
    this.#active.set(runId, set);
    return delivery;
  }

  end(runId: string, delivery: object): void {
    const set = this.#active.get(runId);
    set?.delete(delivery);
    if (set?.size === 0) this.#active.delete(runId);
  }

  /** Marks the deliveries of a run as not for this app. False if there is none. */
  decline(runId: string, reason: string): boolean {
    const set = this.#active.get(runId);
    if (set === undefined) return false;
    for (const delivery of set) delivery.declined = reason;
    return true;
  }
}

/** One set per process: generation 4 has two Worlds, and a bundler may copy this module. */
export function sharedDeliveries(): Deliveries {
  const symbols = globalThis as unknown as Record<symbol, Deliveries | undefined>;
  return (symbols[Symbol.for('redis-world//deliveries')] ??= new Deliveries());
}

/** The reason if the event fails its run because the app lacks the workflow. */
export function notRegistered(event: { eventType: string; eventData?: unknown }): string | undefined {
  if (event.eventType !== 'run_failed') return undefined;
  const { error, errorCode } = (event.eventData ?? {}) as { error?: unknown; errorCode?: unknown };
  // Errors of the workflow's own code have another code, whatever their text.
  if (errorCode !== 'RUNTIME_ERROR') return undefined;
  const text = UNKNOWN.exec(errorText(error))?.[0];
  return text?.replaceAll('\\', '');
}

function errorText(error: unknown): string {
  if (typeof error === 'string') return error;
  if (error instanceof Uint8Array) return plain(error);
  const message = (error as { message?: unknown } | null | undefined)?.message;
  return typeof message === 'string' ? message : '';
}

/** Text of a serialized error: four letters of format, then text or compressed text. */
function plain(bytes: Uint8Array): string {
  const format = Buffer.from(bytes.subarray(0, 4)).toString('latin1');
  const body = bytes.subarray(4);
  try {
    if (format === 'gzip') return zlib.gunzipSync(body).toString();
    // Node 20 has no zstd; then the SDK does not write it either.
    const { zstdDecompressSync } = zlib as { zstdDecompressSync?: (data: Uint8Array) => Buffer };
    if (format === 'zstd') return zstdDecompressSync?.(body).toString() ?? '';
  } catch {
    return '';
  }
  return Buffer.from(body).toString();
}

const STEPS = Symbol.for('@workflow/core//registeredSteps');
const ROOT = /^\.\/(?:(?:example|src)\/)?workflows\//;

/**
 * Whether the app has a step, by the registry that its bundle fills when it is loaded.
 * Undefined where there is no registry.
 */
export function hasStep(name: string): boolean | undefined {
  const registry = (globalThis as unknown as Record<symbol, unknown>)[STEPS];
  if (!(registry instanceof Map) || registry.size === 0) return undefined;
  if (registry.has(name)) return true;
  const [kind, path, ...rest] = name.split('//');
  const called = rest.join('//');
  if (kind !== 'step' || path === undefined) {
    // Steps of the SDK itself are registered with the path of its package in front.
    return [...registry.keys()].some((key) => String(key).endsWith(`//${name}`));
  }
  // The runtime takes these roots for each other; so does this check.
  if (!ROOT.test(path)) return false;
  const tail = path.replace(ROOT, '');
  return ['./workflows/', './example/workflows/', './src/workflows/'].some((root) =>
    registry.has(`step//${root}${tail}//${called}`),
  );
}
