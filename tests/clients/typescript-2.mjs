// The scenario with the TypeScript SDK 2.x, which may probe for the stateless revision and has to fall back.
//   node typescript-2.mjs URL
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { main } from './scenario.mjs';

await main({
  async connect(url, capabilities, { requests, notifications }) {
    const options = { capabilities, versionNegotiation: { mode: 'auto' } };
    const client = new Client({ name: 'typescript-2', version: '1.0.0' }, options);
    for (const [method, handle] of Object.entries(requests)) {
      client.setRequestHandler(method, ({ params }) => handle(params));
    }
    for (const [method, handle] of Object.entries(notifications)) {
      client.setNotificationHandler(method, ({ params }) => handle(params));
    }
    const transport = new StreamableHTTPClientTransport(url);
    await client.connect(transport);
    return { client, transport, protocolVersion: client.getNegotiatedProtocolVersion() };
  },
  callTool: (client, params, options) => client.callTool(params, options),
});
