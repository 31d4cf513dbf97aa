import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { isOlder, VERSION } from '../src/version.js';

const run = promisify(execFile);
const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const entry = join(root, 'src/index.ts');
let folder: string;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'redis-world-'));
});

after(async () => {
  await rm(folder, { recursive: true });
});

/** An app whose `@workflow/world` is that of a generation. Strict: hidden behind `workflow`. */
async function app(name: string, world: string, strict: boolean): Promise<string> {
  const place = join(folder, name);
  const modules = join(place, 'node_modules');
  const link = async (where: string): Promise<void> => {
    await mkdir(join(where, '@workflow'), { recursive: true });
    await symlink(join(root, 'node_modules', world), join(where, '@workflow/world'));
  };
  await mkdir(modules, { recursive: true });
  await writeFile(join(place, 'package.json'), '{"name": "app"}');
  if (!strict) {
    await link(modules);
    return place;
  }
  for (const [inside, called] of [
    ['workflow', 'workflow'],
    ['workflow/node_modules/@workflow/core', '@workflow/core'],
  ] as const) {
    await mkdir(join(modules, inside), { recursive: true });
    const manifest = { name: called, exports: './index.js' };
    await writeFile(join(modules, inside, 'package.json'), JSON.stringify(manifest));
    await writeFile(join(modules, inside, 'index.js'), '');
  }
  await link(join(modules, 'workflow/node_modules/@workflow/core/node_modules'));
  return place;
}

async function specVersion(cwd: string, env: Record<string, string> = {}): Promise<string> {
  const script = `
    const module = await import(${JSON.stringify(entry)});
    const world = module.default();
    console.log([world.specVersion, 'then' in world, module.createWorld().specVersion].join());
  `;
  const tsx = import.meta.resolve('tsx');
  const args = ['--import', tsx, '--input-type=module', '-e', script];
  const { stdout } = await run(process.execPath, args, { cwd, env: { ...process.env, ...env } });
  return stdout.trim();
}

for (const strict of [false, true]) {
  test(`the spec version is that of the app's SDK (${strict ? 'hidden' : 'direct'})`, async () => {
    assert.equal(await specVersion(await app(`four-${strict}`, 'world4', strict)), '3,false,3');
    const five = await app(`five-${strict}`, '@workflow/world', strict);
    assert.equal(await specVersion(five), '7,false,7');
    assert.equal(await specVersion(five, { WORKFLOW_SEALED_LOG: '0' }), '6,false,6');
  });
}

test('versions of the package agree', async () => {
  const manifest = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as {
    version: string;
  };
  assert.equal(VERSION, manifest.version);
  const python = await readFile(join(root, '../src/redis_world/__init__.py'), 'utf8');
  assert.equal(/__version__ = "([^"]+)"/.exec(python)?.[1], VERSION);
});

test('versions are compared by number', () => {
  assert.ok(isOlder('0.9.0', '0.10.0'));
  assert.ok(!isOlder('0.10.0', '0.9.9'));
  assert.ok(!isOlder('1.0.0-rc.1', '1.0.0'));
  assert.ok(!isOlder('1.0', '1.0.0'));
  assert.ok(isOlder('garbage', '0.0.1'));
});
