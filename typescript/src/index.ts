import type { World } from '@workflow/world';

import type { RedisWorldOptions } from './options.js';
import { buildWorld } from './world.js';

export type { RedisWorldOptions } from './options.js';
export { VERSION } from './version.js';

/**
 * Creates a World that keeps runs in Redis, through the server `redis-world serve`.
 *
 * It connects on the first call. Only `start()` takes messages: a process that reads runs does
 * not call it.
 */
export function createWorld(options: RedisWorldOptions = {}): World {
  return buildWorld(options) as unknown as World;
}

export default createWorld;
