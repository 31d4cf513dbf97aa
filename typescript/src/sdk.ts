import { createRequire } from 'node:module';
import { join } from 'node:path';

import { ConfigurationError, type RedisWorldOptions } from './options.js';

/** The parts of the app's own SDK that this package uses. */
export interface Sdk {
  /** 4: `workflow` 4.x. 5: the beta. They differ in streams, steps and routes. */
  readonly generation: 4 | 5;
  /** Version that new runs get. */
  readonly specVersion: number;
  /** Exports of the app's `@workflow/errors`, empty where it is not found. */
  readonly errors: Readonly<Record<string, unknown>>;
  /** Port of the app's own HTTP server, by the SDK's detection. */
  readonly detectPort: (() => Promise<number | undefined>) | undefined;
}

type Require = NodeJS.Require;

/** Where to look: next to the app's core, in the app, next to this package. */
function requires(): Require[] {
  const app = createRequire(join(process.cwd(), 'package.json'));
  const own = createRequire(import.meta.url);
  // Strict layouts (pnpm) show an app only its direct dependencies: follow them to core.
  const chains = [
    [app, 'workflow', '@workflow/core'],
    [app, '@workflow/core'],
    [app],
    [own, '@workflow/core'],
    [own],
  ] as const;
  const found: Require[] = [];
  for (const [start, ...names] of chains) {
    try {
      found.push(
        names.reduce<Require>((current, name) => createRequire(current.resolve(name)), start),
      );
    } catch {
      // Not installed there.
    }
  }
  return found;
}

function load(places: readonly Require[], name: string): Record<string, unknown> | undefined {
  for (const place of places) {
    try {
      return place(name) as Record<string, unknown>;
    } catch {
      // Not installed there.
    }
  }
  return undefined;
}

function version(world: Record<string, unknown> | undefined, given: number | undefined): number {
  if (given !== undefined) return given;
  const minted = world?.['mintedSpecVersion'];
  if (typeof minted === 'function') return (minted as () => number)();
  const current = world?.['SPEC_VERSION_CURRENT'];
  if (typeof current === 'number') return current;
  throw new ConfigurationError(
    `@workflow/world is not found from ${process.cwd()}. Install \`workflow\` in the app, ` +
      'start the process in the folder of its package.json, or set the option specVersion.',
  );
}

/** Finds the SDK that the app runs. Synchronous: generation 4 loads a World with `require`. */
export function findSdk(options: RedisWorldOptions): Sdk {
  const places = requires();
  const specVersion = version(load(places, '@workflow/world'), options.specVersion);
  const port = load(places, '@workflow/utils/get-port')?.['getWorkflowPort'];
  return {
    // Spec versions above 3 came with generation 5.
    generation: specVersion > 3 ? 5 : 4,
    specVersion,
    errors: load(places, '@workflow/errors') ?? {},
    detectPort:
      typeof port === 'function' ? (port as () => Promise<number | undefined>) : undefined,
  };
}
