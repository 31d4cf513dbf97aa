import { createHmac, timingSafeEqual } from 'node:crypto';

export const SIGNATURE_HEADER = 'redis-world-signature';

/** Seconds that the clocks of the sender and of the app may differ. */
export const WINDOW = 300;

function digest(token: string, time: string, body: Uint8Array): Buffer {
  return createHmac('sha256', token).update(`${time}.`).update(body).digest();
}

/** Value of the signature header for a delivery. */
export function sign(tokens: readonly string[], body: Uint8Array, now = Date.now()): string {
  const time = String(Math.floor(now / 1000));
  const values = tokens.map((token) => `v1=${digest(token, time, body).toString('hex')}`);
  return [`t=${time}`, ...values].join(',');
}

/** Whether one of the signatures fits one of the tokens and is not too old. */
export function verify(
  tokens: readonly string[],
  header: string | null,
  body: Uint8Array,
  now = Date.now(),
): boolean {
  const fields = (header ?? '').split(',').map((field) => field.trim());
  const time = fields.find((field) => field.startsWith('t='))?.slice(2) ?? '';
  if (!/^\d{1,12}$/.test(time) || Math.abs(now / 1000 - Number(time)) > WINDOW) return false;
  const given = fields
    .filter((field) => /^v1=[0-9a-f]{64}$/.test(field))
    .map((field) => Buffer.from(field.slice(3), 'hex'))
    // Each costs one digest per token: more is no rotation but an attack.
    .slice(0, 8);
  let valid = false;
  for (const token of tokens) {
    const expected = digest(token, time, body);
    // No early return: the time must not tell which of them fits.
    for (const value of given) valid = timingSafeEqual(value, expected) || valid;
  }
  return valid;
}
