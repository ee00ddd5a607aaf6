// A port that is known before the gateway's: `listen.public_url` has to name it, and the gateway takes any free one.
import { once } from 'node:events';
import { connect, createServer } from 'node:net';

/** Listens on a free loopback port; `url` is its origin. `leadTo(ORIGIN)` says where what comes in goes. */
export async function startFront() {
  let target;
  const front = createServer((client) => {
    const server = connect(Number(target.port), target.hostname);
    const end = () => {
      client.destroy();
      server.destroy();
    };
    for (const socket of [client, server]) socket.on('error', end).on('close', end).setNoDelay(true);
    client.pipe(server);
    server.pipe(client);
  }).listen(0, '127.0.0.1');
  await once(front, 'listening');
  return {
    url: `http://127.0.0.1:${front.address().port}`,
    leadTo: (origin) => { target = new URL(origin); },
    close: () => front.close(),
  };
}
