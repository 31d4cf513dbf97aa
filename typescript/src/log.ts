/** Writes one line about a change of state. Fields are ids and values, in order. */
export function log(
  level: 'info' | 'warn' | 'error',
  message: string,
  fields: Record<string, string | number | undefined> = {},
): void {
  const text = Object.entries(fields)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => ` ${name}=${String(value)}`)
    .join('');
  console[level](`[redis-world] ${message}${text}`);
}
