// Requests that two readers of one connection may take for another number of requests, sent to a proxy. What the proxy does
// with them is its own affair; the gateway behind it must never see one that the proxy does not know of (F:D07).
import { connect as connectPlain } from 'node:net';
import { connect as connectTls } from 'node:tls';

/** The path of the hidden request, which nothing else asks for. */
const HIDDEN = '/hidden';
const SILENCE_MS = 300; // after which a proxy that answered waits for more
const PATIENCE_MS = 5000;

/** What to send, each with a name: `head` is the beginning of a POST up to its length, `hidden` the request that must not be seen. */
function attacks(head, hidden) {
  const chunked = `0\r\n\r\n${hidden}`;
  const sized = `content-length: ${Buffer.byteLength(chunked)}`;
  const coded = (field) => `${head}${sized}\r\n${field}\r\n\r\n${chunked}`;
  const short = (fields) => `${head}${fields}\r\n\r\n{}${hidden}`;
  const chunk = `${Buffer.byteLength(hidden).toString(16)}`;
  return {
    'a length beside chunks': coded('transfer-encoding: chunked'),
    'chunks beside a length': `${head}transfer-encoding: chunked\r\n${sized}\r\n\r\n${chunked}`,
    'a coding with a space before its colon': coded('transfer-encoding : chunked'),
    'a coding on a further line': coded('transfer-encoding:\r\n chunked'),
    'a coding after a tab': coded('transfer-encoding:\tchunked'),
    'a coding after a vertical tab': coded('transfer-encoding: \x0bchunked'),
    'a coding with a mark behind it': coded('transfer-encoding: chunked\x85'),
    'a coding of another name': coded('transfer-encoding: xchunked'),
    'a coding in quotes': coded('transfer-encoding: "chunked"'),
    'a coding and none': coded('transfer-encoding: chunked, identity'),
    'two codings': coded('transfer-encoding: identity\r\ntransfer-encoding: chunked'),
    'a coding behind a bare LF': coded('x: y\ntransfer-encoding: chunked'),
    'a coding behind a bare CR': coded('x: y\rtransfer-encoding: chunked'),
    'a coding with an underscore': coded('transfer_encoding: chunked'),
    'a coding behind NUL': coded('x: \0\r\ntransfer-encoding: chunked'),
    'two lengths': short(`content-length: 2\r\ncontent-length: ${2 + hidden.length}`),
    'two lengths, the longer first': short(`content-length: ${2 + hidden.length}\r\ncontent-length: 2`),
    'a list of lengths': short(`content-length: ${2 + hidden.length}, 2`),
    'a length with a sign': short(`content-length: +${2 + hidden.length}`),
    'a length with an underscore': short(`content-length: ${2 + hidden.length}\r\ncontent_length: 2`),
    'a length in hexadecimal': short(`content-length: 0x${(2 + hidden.length).toString(16)}`),
    'a length behind a space': short(`content-length: ${2 + hidden.length}\r\ncontent-length : 2`),
    'a chunk with an extension over two lines': `${head}transfer-encoding: chunked\r\n\r\n${chunk};a\n\r\n${hidden}\r\n0\r\n\r\n`,
    'a chunk that ends with LF': `${head}transfer-encoding: chunked\r\n\r\n2\r\n{}\n0\r\n\r\n`,
    'a chunk size with a prefix': `${head}transfer-encoding: chunked\r\n\r\n0x${chunk}\r\n${hidden}\r\n0\r\n\r\n`,
    'a chunk size beyond all bounds': `${head}transfer-encoding: chunked\r\n\r\n1000000000000000${chunk}\r\n${hidden}\r\n0\r\n\r\n`,
    'a trailer with a length': `${head}transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\ncontent-length: ${hidden.length}\r\n\r\n`,
    'a body of GET': `${head.replace('POST', 'GET')}content-length: ${hidden.length}\r\n\r\n${hidden}`,
    'a body in HTTP/1.0': `${head.replace('HTTP/1.1', 'HTTP/1.0')}content-length: ${hidden.length}\r\n\r\n${hidden}`,
    'chunks in HTTP/1.0': `${head.replace('HTTP/1.1', 'HTTP/1.0')}transfer-encoding: chunked\r\n\r\n${chunk}\r\n${hidden}\r\n0\r\n\r\n`,
    'an upgrade': `${head}connection: upgrade\r\nupgrade: websocket\r\ncontent-length: ${hidden.length}\r\n\r\n${hidden}`,
    'an upgrade to HTTP/2': `${head}connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\ncontent-length: ${hidden.length}\r\n\r\n${hidden}`,
    'an expectation': `${head}expect: 100-continue\r\ncontent-length: ${hidden.length}\r\n\r\n${hidden}`,
  };
}

/** Sends `text`, in pieces of its own, and reads until the proxy closes or falls silent. */
function send({ port, host, certificate }, text) {
  return new Promise((resolve) => {
    const socket = certificate
      ? connectTls({ host: '127.0.0.1', port, ca: certificate, servername: host, ALPNProtocols: ['http/1.1'] })
      : connectPlain(port, '127.0.0.1');
    let answer = '';
    socket.setTimeout(PATIENCE_MS).on('timeout', () => socket.destroy()).on('error', () => {}).on('close', () => resolve(answer));
    socket.on('data', (data) => {
      answer += data.toString('latin1');
      socket.setTimeout(SILENCE_MS);
    });
    socket.write(Buffer.from(text, 'latin1'));
  });
}

/** The sum of all answers of gateways to requests for paths where nothing is. */
async function seen(admins) {
  const texts = await Promise.all(admins.map(async (admin) => (await fetch(`http://${admin}/metrics`)).text()));
  const counts = texts.flatMap((text) => [...text.matchAll(/^gangway_http_responses_total\{(?=[^}]*code="404")(?=[^}]*route="other")[^}]*\} (\d+)/gm)]);
  return counts.reduce((sum, [, count]) => sum + Number(count), 0);
}

/** Sends all of it to a proxy: throws where a gateway behind it saw a hidden request that the proxy took for a part of another. What a later client gets is checked by `settled`. */
export async function smugglesNothing(proxy, { path, key, admins, settled }) {
  const head = `POST ${path} HTTP/1.1\r\nhost: ${proxy.host}\r\nauthorization: Bearer ${key}\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n`;
  const hidden = `GET ${HIDDEN} HTTP/1.1\r\nhost: ${proxy.host}\r\nx: `;
  for (const [what, text] of Object.entries(attacks(head, `${hidden}\r\n\r\n`))) {
    const before = await seen(admins);
    const answer = await send(proxy, text);
    await settled();
    const count = (await seen(admins)) - before;
    // A proxy that reads two requests answers both.
    const answers = answer.match(/HTTP\/1\.[01] (?!100)\d{3} /g)?.length ?? 0;
    if (count > Math.max(answers - 1, 0)) throw new Error(`${what}: the gateway saw the hidden request ${count} times; the proxy said ${JSON.stringify(answer.slice(0, 300))}`);
  }
}
