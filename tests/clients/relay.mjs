// A TCP relay between a client and the server under test that can reset every connection it carries: what a client sees
// when a load balancer restarts or a laptop changes its network.
import { once } from 'node:events';
import { connect, createServer } from 'node:net';

/** Relays to the origin of `url`. `url` of the result is the same address through the relay. */
export async function startRelay(url) {
  const target = new URL(url);
  const pairs = new Set();
  const relay = createServer((client) => {
    const server = connect(Number(target.port), target.hostname);
    const pair = [client, server];
    pairs.add(pair);
    const end = () => {
      pairs.delete(pair);
      client.destroy();
      server.destroy();
    };
    for (const socket of pair) socket.on('error', end).on('close', end).setNoDelay(true);
    client.pipe(server);
    server.pipe(client);
  });
  relay.listen(0, '127.0.0.1');
  await once(relay, 'listening');
  return {
    url: `http://127.0.0.1:${relay.address().port}${target.pathname}`,
    /** Resets all open connections, to both sides, and gives their number. */
    cut() {
      const open = [...pairs];
      for (const socket of open.flat()) socket.resetAndDestroy();
      return open.length;
    },
    close: () => relay.close(),
  };
}
