import { getWritable, sleep } from 'workflow';

export async function sequentialStepsWorkflow(start: number): Promise<number> {
  'use workflow';
  let sum = start;
  for (const more of [2, 3, 5]) sum = await add(sum, more);
  return sum;
}

export async function sequentialStepsWithStreamWorkflow(): Promise<string> {
  'use workflow';
  const output = getWritable<string>();
  const words = [await write(output, 'hello'), await write(output, ' world')];
  await end(output);
  return words.join('');
}

export async function sleepWorkflow(): Promise<number> {
  'use workflow';
  await sleep('1s');
  return add(1, 2);
}

export async function parallelStepsWorkflow(): Promise<number> {
  'use workflow';
  const [left, right] = await Promise.all([add(10, 1), add(20, 2)]);
  return left + right;
}

async function add(left: number, right: number): Promise<number> {
  'use step';
  return left + right;
}

async function write(output: WritableStream<string>, word: string): Promise<string> {
  'use step';
  const writer = output.getWriter();
  await writer.write(word);
  writer.releaseLock();
  return word;
}

async function end(output: WritableStream<string>): Promise<void> {
  'use step';
  await output.close();
}
