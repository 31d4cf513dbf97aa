import { sharedDeliveries } from './deliveries.js';
import { createHandlerFactory } from './handler.js';
import type { RedisWorldOptions } from './options.js';
import { Puller } from './puller.js';
import { createQueue } from './queue.js';
import { findSdk } from './sdk.js';
import { createStorage } from './storage.js';
import { createStreams } from './streams.js';
import { Transport } from './transport.js';

/** The World with the types of this package, which serve both generations. */
export function buildWorld(options: RedisWorldOptions) {
  const sdk = findSdk(options);
  const deliveries = sharedDeliveries();
  const transport = new Transport(sdk, options);
  const puller = new Puller(transport, options, sdk);
  const { streams, flat } = createStreams(transport);
  // A plain object: core reads `then`, and takes createQueueHandler off it.
  return {
    specVersion: sdk.specVersion,
    capabilities: { hookResumeDedup: true, hookRetention: { active: true } },
    ...createStorage(transport, sdk, deliveries),
    ...createQueue(transport, options),
    createQueueHandler: createHandlerFactory(options, deliveries),
    streams,
    ...flat,

    async start(): Promise<void> {
      // Fails here, with its own text, rather than in the first poll.
      transport.check();
      puller.start();
    },

    async close(): Promise<void> {
      await puller.close();
      transport.close();
    },
  };
}
