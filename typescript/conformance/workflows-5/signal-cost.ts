export async function signalCostWorkflow(input: { count: number; withSignal: boolean }) {
  'use workflow';
  const { signal } = new AbortController();
  for (let index = 0; index < input.count; index += 1) {
    await nothing(index, input.withSignal ? signal : undefined);
  }
  return 'done';
}

async function nothing(index: number, _signal?: AbortSignal): Promise<number> {
  'use step';
  return index;
}
