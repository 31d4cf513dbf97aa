// A plain Node app: it serves the two routes of the Workflow SDK and starts the World.
import http from 'node:http';

import { getWorld } from 'workflow/runtime';

import flow from './.well-known/workflow/v1/flow.js';
import step from './.well-known/workflow/v1/step.js';

const routes = {
  '/.well-known/workflow/v1/flow': flow.POST,
  '/.well-known/workflow/v1/step': step.POST,
};

async function serve(request, response) {
  const route = request.method === 'POST' ? routes[request.url] : undefined;
  if (route === undefined) {
    response.writeHead(404).end();
    return;
  }
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  const reply = await route(
    new Request(`http://localhost${request.url}`, {
      method: 'POST',
      headers: Object.entries(request.headers),
      body: Buffer.concat(pieces),
    }),
  );
  response.writeHead(reply.status, Object.fromEntries(reply.headers));
  response.end(Buffer.from(await reply.arrayBuffer()));
}

/** Starts the app. Returns a function that stops it. */
export async function start() {
  const server = http.createServer((request, response) => {
    serve(request, response).catch((error) => {
      console.error(error);
      response.writeHead(500).end();
    });
  });
  await new Promise((resolve) => server.listen(Number(process.env.PORT ?? 0), '127.0.0.1', resolve));
  process.env.PORT = String(server.address().port);
  const world = getWorld();
  await world.start();
  return async () => {
    await world.close();
    server.closeAllConnections();
    server.close();
  };
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const stop = await start();
  console.log(`listening on port ${process.env.PORT}`);
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, stop);
}
