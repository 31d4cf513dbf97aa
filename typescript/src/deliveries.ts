import * as zlib from 'node:zlib';

// Workflows live inside a bundle that only the runtime reads, so the World cannot list them.
// The runtime says what it lacks by failing the run. The World turns that into "not here":
// another process, or a newer deployment of the app, may have the workflow.

const UNKNOWN = /(Workflow|Step) \\?"[^"]*" is not registered in the current deployment/;

export interface Active {
  readonly stepId: string | undefined;
  declined?: string;
  /** Whether the delivery records the end of its step and looks at what comes next. */
  finishing: boolean;
}

// After the end of its step a delivery reads the run's log, and all that see the last step done
// replay the run and try to end it. Few at a time avoid that; steps themselves all run at once.
const MAX_FINISHING = 2;
const FINISHING_TIME = 500;
const STEP_ENDS = new Set(['step_completed', 'step_failed']);

/** Deliveries that run in this process, by run. */
export class Deliveries {
  readonly #active = new Map<string, Set<Active>>();
  readonly #waiting = new Map<string, (() => void)[]>();

  /** Registers a delivery until `end` is called. */
  begin(runId: string, stepId?: string): Active {
    const delivery: Active = { stepId, finishing: false };
    const set = this.#active.get(runId) ?? new Set();
    set.add(delivery);
    this.#active.set(runId, set);
    return delivery;
  }

  end(runId: string, delivery: Active): void {
    const set = this.#active.get(runId);
    set?.delete(delivery);
    if (set?.size === 0) this.#active.delete(runId);
    this.#next(runId, delivery);
  }

  /** Waits until the delivery of this event's step may record the end of the step. */
  async finish(runId: string, eventType: string, stepId: string | undefined): Promise<void> {
    if (stepId === undefined || !STEP_ENDS.has(eventType)) return;
    const set = this.#active.get(runId) ?? new Set<Active>();
    const delivery = [...set].find((one) => one.stepId === stepId && !one.finishing);
    if (delivery === undefined) return;
    while ([...set].filter((one) => one.finishing).length >= MAX_FINISHING) {
      await new Promise<void>((resolve) => {
        this.#waiting.set(runId, [...(this.#waiting.get(runId) ?? []), resolve]);
      });
    }
    delivery.finishing = true;
    // It may go on with other steps, which must not hold the others back.
    setTimeout(() => {
      this.#next(runId, delivery);
    }, FINISHING_TIME).unref();
  }

  #next(runId: string, delivery: Active): void {
    if (!delivery.finishing) return;
    delivery.finishing = false;
    const [first, ...rest] = this.#waiting.get(runId) ?? [];
    if (rest.length > 0) this.#waiting.set(runId, rest);
    else this.#waiting.delete(runId);
    first?.();
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
