import { defineHook, getWritable } from 'workflow';

interface Item {
  data: string;
  done?: boolean;
  metadata?: unknown;
}

const items = defineHook<Item>();

export async function collectWithHook(token: string, customData: string) {
  'use workflow';
  const output = getWritable<Uint8Array>();
  const hook = items.create({ token, metadata: { customData } });
  await report(output, 'hookCreated');
  const collected: Item[] = [];
  for await (const item of hook) {
    await report(output, 'hookResumed', item);
    collected.push(item);
    if (item.done) return { collected };
  }
  return { collected };
}

async function report(output: WritableStream<Uint8Array>, event: string, payload?: Item) {
  'use step';
  const writer = output.getWriter();
  await writer.write(new TextEncoder().encode(`${JSON.stringify({ event, payload })}\r\n`));
  writer.releaseLock();
}
