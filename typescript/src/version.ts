/** Version of this package. A test compares it with package.json. */
export const VERSION = '0.1.0';

/** The protocol that this package speaks, as in the server's `Redis-World-Protocol` header. */
export const PROTOCOL = 1;

/** Oldest server that has all methods this package calls. */
export const MINIMUM_SERVER = '0.1.0';

function parts(version: string): number[] {
  const core = /^\d+(\.\d+)*/.exec(version)?.[0] ?? '0';
  return core.split('.').map(Number);
}

/** Whether `version` is older than `minimum`. Suffixes such as `-rc.1` are ignored. */
export function isOlder(version: string, minimum: string): boolean {
  const left = parts(version);
  const right = parts(minimum);
  for (let i = 0; i < Math.max(left.length, right.length); i += 1) {
    const difference = (left[i] ?? 0) - (right[i] ?? 0);
    if (difference !== 0) return difference < 0;
  }
  return false;
}
