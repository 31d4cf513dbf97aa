import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type AddressInfo } from 'node:net';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '../../..');

/** Command of the server: of the repository's environment, or `REDIS_WORLD_COMMAND`. */
const command = process.env['REDIS_WORLD_COMMAND'] ?? join(root, '.venv/bin/redis-world');

export async function freePort(): Promise<number> {
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

async function wait(condition: () => Promise<boolean>, what: string): Promise<void> {
  const deadline = Date.now() + 20_000;
  while (!(await condition().catch(() => false))) {
    if (Date.now() > deadline) throw new Error(`${what} did not start`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function end(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill(signal);
  await once(child, 'exit');
}

/** A Redis and a `redis-world serve` of their own. */
export class Servers {
  readonly token = 'integration-test-token';
  #redis: ChildProcess | undefined;
  #serve: ChildProcess | undefined;
  #redisPort = 0;
  #port = 0;

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  async start(): Promise<void> {
    this.#redisPort = await freePort();
    this.#port = await freePort();
    this.#redis = spawn(
      'redis-server',
      ['--port', String(this.#redisPort), '--save', '', '--bind', '127.0.0.1'],
      { stdio: 'ignore' },
    );
    await this.serve();
  }

  async serve(): Promise<void> {
    const redis = `redis://127.0.0.1:${this.#redisPort}`;
    const arguments_ = ['serve', '--url', redis, '--port', String(this.#port)];
    this.#serve = spawn(command, arguments_, {
      stdio: ['ignore', 'ignore', process.env['VERBOSE'] === undefined ? 'ignore' : 'inherit'],
      env: { ...process.env, REDIS_WORLD_TOKENS: `${this.token} world app` },
    });
    let failure: Error | undefined;
    this.#serve.on('error', (error) => {
      failure = error;
    });
    await wait(async () => {
      if (failure !== undefined) return true;
      return (await fetch(`${this.url}/readyz`)).ok;
    }, command);
    if (failure !== undefined) throw failure;
  }

  /** Ends the server in the middle of whatever it does. */
  async kill(): Promise<void> {
    if (this.#serve !== undefined) await end(this.#serve, 'SIGKILL');
  }

  async stop(): Promise<void> {
    if (this.#serve !== undefined) await end(this.#serve, 'SIGTERM');
    if (this.#redis !== undefined) await end(this.#redis, 'SIGTERM');
  }
}
