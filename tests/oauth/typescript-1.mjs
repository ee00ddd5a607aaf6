// The session with the TypeScript SDK 1.x.      node typescript-1.mjs URL BROWSER
import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { main } from './session.mjs';

await main({
  name: 'typescript-1',
  UnauthorizedError,
  // This version answers a challenge for more scopes with a refresh, which never widens them (RFC 6749, section 6). An
  // application has to forget the refresh token before.
  refreshesOnStepUp: true,
  async connect(url, authProvider, begun = () => {}) {
    const client = new Client({ name: 'typescript-1', version: '1.0.0' });
    const transport = new StreamableHTTPClientTransport(url, { authProvider });
    begun(transport);
    await client.connect(transport);
    return { client, transport };
  },
  finishAuth: (transport, callback) => transport.finishAuth(callback.searchParams.get('code')),
  callTool: (client, params) => client.callTool(params),
});
