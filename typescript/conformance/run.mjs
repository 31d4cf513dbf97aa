#!/usr/bin/env node
// Runs the Workflow SDK's own suite for Worlds against this package and a running server:
//
//   REDIS_WORLD_SERVER_URL=http://localhost:8470 node conformance/run.mjs [version]
//
// The default is the suite as published, with the core that it was built with. The server needs an
// empty namespace: other apps on it would take the suite's messages.

import { execFileSync } from 'node:child_process';
import { cpSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const SUITES = {
  '5.0.0-beta.35': { vitest: '4.1.12' },
};

const here = dirname(fileURLToPath(import.meta.url));
const version = process.argv[2] ?? '5.0.0-beta.35';
const suite = SUITES[version];
if (suite === undefined) {
  console.error(`unknown suite ${version}; known: ${Object.keys(SUITES).join(', ')}`);
  process.exit(2);
}
if (!process.env.REDIS_WORLD_SERVER_URL) {
  console.error('REDIS_WORLD_SERVER_URL is not set. Start `redis-world serve` and set its address.');
  process.exit(2);
}

const folder = mkdtempSync(join(tmpdir(), 'redis-world-conformance-'));
const run = (command, args, cwd, env = {}) =>
  execFileSync(command, args, { cwd, stdio: 'inherit', env: { ...process.env, ...env } });

try {
  run('npm', ['pack', '--silent', '--pack-destination', folder], join(here, '..'));
  const own = readdirSync(folder).find((name) => name.endsWith('.tgz'));
  writeFileSync(join(folder, 'package.json'), '{ "private": true, "type": "module" }\n');
  const packages = [
    `@workflow/world-testing@${version}`,
    `vitest@${suite.vitest}`,
    join(folder, own),
  ];
  run('npm', ['install', '--no-audit', '--no-fund', '--ignore-scripts', ...packages], folder);
  cpSync(join(here, 'polyfill.mjs'), join(folder, 'polyfill.mjs'));
  writeFileSync(
    join(folder, 'suite.test.mjs'),
    `import { createTestSuite } from '@workflow/world-testing';\ncreateTestSuite('redis-world');\n`,
  );
  writeFileSync(
    join(folder, 'vitest.config.mjs'),
    `export default { test: { include: ['suite.test.mjs'], testTimeout: 60_000 } };\n`,
  );
  run('npx', ['vitest', 'run'], folder, {
    // The suite starts its app as a process of its own, which needs the polyfill, too.
    NODE_OPTIONS: `--import ${join(folder, 'polyfill.mjs')}`,
  });
} finally {
  rmSync(folder, { recursive: true, force: true });
}
