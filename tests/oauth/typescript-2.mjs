// The session with the TypeScript SDK 2.x.      node typescript-2.mjs URL BROWSER
import { Client, StreamableHTTPClientTransport, UnauthorizedError } from '@modelcontextprotocol/client';
import { main } from './session.mjs';

await main({
  name: 'typescript-2',
  UnauthorizedError,
  async connect(url, authProvider, begun = () => {}) {
    const client = new Client({ name: 'typescript-2', version: '1.0.0' }, { versionNegotiation: { mode: 'auto' } });
    const transport = new StreamableHTTPClientTransport(url, { authProvider });
    begun(transport);
    await client.connect(transport);
    return { client, transport };
  },
  finishAuth: (transport, callback) => transport.finishAuth(callback.searchParams),
  callTool: (client, params) => client.callTool(params),
});
