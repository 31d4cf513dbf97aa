import { ConfigurationError, type RedisWorldOptions } from './options.js';
import type { Sdk } from './sdk.js';

const ROUTES = '/.well-known/workflow/v1';

/** Finds the app's own address, again after `forget()`. */
export class BaseUrl {
  readonly #options: RedisWorldOptions;
  readonly #sdk: Sdk;
  #detected: string | undefined;

  constructor(options: RedisWorldOptions, sdk: Sdk) {
    this.#options = options;
    this.#sdk = sdk;
  }

  /** The route of a queue's messages. Rejects while the app does not listen yet. */
  async route(queueName: string): Promise<URL> {
    const base = await this.#base();
    const kind = /^__(?:[a-z][a-z0-9]*_)?wkf_step_/.test(queueName) ? 'step' : 'flow';
    return new URL(`${base.replace(/\/+$/, '')}${ROUTES}/${kind}`);
  }

  forget(): void {
    this.#detected = undefined;
  }

  async #base(): Promise<string> {
    const given = this.#options.baseUrl ?? process.env['REDIS_WORLD_BASE_URL'];
    if (given !== undefined && given !== '') {
      if (!URL.canParse(given)) {
        throw new ConfigurationError(`REDIS_WORLD_BASE_URL is "${given}", which is not a URL.`);
      }
      return given;
    }
    const port = process.env['PORT'];
    if (port !== undefined && port !== '') return `http://localhost:${port}${basePath()}`;
    if (this.#detected === undefined) {
      const detected = await this.#sdk.detectPort?.();
      if (detected === undefined) {
        throw new ConfigurationError(
          'The address of this app is unknown. Set REDIS_WORLD_BASE_URL or PORT.',
        );
      }
      this.#detected = `http://localhost:${detected}${basePath()}`;
    }
    return this.#detected;
  }
}

/** The base path that the app's framework has told core. */
function basePath(): string {
  const symbols = globalThis as unknown as Record<symbol, unknown>;
  const path = symbols[Symbol.for('@workflow/core/basePath')];
  return typeof path === 'string' ? path : '';
}
