#!/usr/bin/env node
// Runs the Workflow SDK's own suite for Worlds against this package and a running server:
//
//   REDIS_WORLD_SERVER_URL=http://localhost:8470 node conformance/run.mjs [published | rebuilt]
//
// published: the suite as published, with the core that it was built with.
// rebuilt:   its tests on a newer core, with the workflows of this folder. Their names and results
//            are those that the tests expect.
//
// The server needs an empty namespace: other apps on it would take the suite's messages.

import { execFileSync } from 'node:child_process';
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const SUITE = '@workflow/world-testing@5.0.0-beta.35';
const VITEST = 'vitest@4.1.12';
const NEWER = {
  workflow: '5.0.0-beta.55',
  '@workflow/cli': '5.0.0-beta.55',
  '@workflow/core': '5.0.0-beta.55',
  '@workflow/errors': '5.0.0-beta.22',
  '@workflow/utils': '5.0.0-beta.10',
  '@workflow/world': '5.0.0-beta.37',
  '@workflow/world-local': '5.0.0-beta.46',
};

const here = dirname(fileURLToPath(import.meta.url));
const mode = process.argv[2] ?? 'published';
if (mode !== 'published' && mode !== 'rebuilt') {
  console.error(`unknown mode ${mode}; use published or rebuilt`);
  process.exit(2);
}
if (!process.env.REDIS_WORLD_SERVER_URL) {
  console.error('REDIS_WORLD_SERVER_URL is not set. Start `redis-world serve` and set its address.');
  process.exit(2);
}

const folder = mkdtempSync(join(tmpdir(), 'redis-world-conformance-'));
const suite = join(folder, 'node_modules/@workflow/world-testing/dist');

function run(command, args, env = {}, cwd = folder) {
  execFileSync(command, args, { cwd, stdio: 'inherit', env: { ...process.env, ...env } });
}

function replace(path, from, to) {
  const text = readFileSync(path, 'utf8');
  if (!text.includes(from)) throw new Error(`${path} does not contain ${from}`);
  writeFileSync(path, text.replace(from, to));
}

function rebuild() {
  mkdirSync(join(folder, 'workflows'));
  for (const part of ['workflows', 'workflows-5']) {
    cpSync(join(here, part), join(folder, 'workflows'), { recursive: true });
  }
  run('npx', ['workflow', 'build', '--target', 'standalone']);
  const routes = '.well-known/workflow/v1';
  rmSync(join(suite, routes), { recursive: true });
  cpSync(join(folder, routes), join(suite, routes), { recursive: true });
  // Two names of the older core that the suite's app uses.
  const app = join(suite, 'src/server.mjs');
  replace(
    app,
    "import { getWorldImport } from '@workflow/utils';",
    'const getWorldImport = (env) => env.WORKFLOW_TARGET_WORLD;',
  );
  replace(app, 'metadata: hook.metadata', 'metadata: await hook.metadata');
}

try {
  run('npm', ['pack', '--silent', '--pack-destination', folder], {}, join(here, '..'));
  const own = readdirSync(folder).find((name) => name.endsWith('.tgz'));
  const overrides = mode === 'rebuilt' ? NEWER : {};
  const manifest = { private: true, type: 'module', overrides };
  writeFileSync(join(folder, 'package.json'), JSON.stringify(manifest));
  const packages = [SUITE, VITEST, join(folder, own)];
  run('npm', ['install', '--no-audit', '--no-fund', '--ignore-scripts', ...packages]);
  if (mode === 'rebuilt') rebuild();
  cpSync(join(here, 'polyfill.mjs'), join(folder, 'polyfill.mjs'));
  writeFileSync(
    join(folder, 'suite.test.mjs'),
    `import { createTestSuite } from '@workflow/world-testing';\ncreateTestSuite('redis-world');\n`,
  );
  writeFileSync(
    join(folder, 'vitest.config.mjs'),
    `export default { test: { include: ['suite.test.mjs'], testTimeout: 60_000 } };\n`,
  );
  run('npx', ['vitest', 'run'], {
    // The suite starts its app as a process of its own, which needs the polyfill, too.
    NODE_OPTIONS: `--import ${join(folder, 'polyfill.mjs')}`,
  });
} finally {
  rmSync(folder, { recursive: true, force: true });
}
