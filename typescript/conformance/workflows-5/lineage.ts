import { start } from 'workflow/api';

export async function bodyStartsChild(): Promise<string> {
  'use workflow';
  await nothing();
  return (await start(spawnedChild, [])).runId;
}

export async function spawnedChild(): Promise<string> {
  'use workflow';
  await nothing();
  return 'child';
}

export async function chainRoot(): Promise<string> {
  'use workflow';
  await nothing();
  return (await start(chainMiddle, [])).runId;
}

export async function chainMiddle(): Promise<string> {
  'use workflow';
  await nothing();
  return (await start(chainLeaf, [])).runId;
}

export async function chainLeaf(): Promise<string> {
  'use workflow';
  await nothing();
  return 'leaf';
}

async function nothing(): Promise<void> {
  'use step';
}
