// The scenario with the TypeScript SDK 1.x.      node typescript-1.mjs URL
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as mcp from '@modelcontextprotocol/sdk/types.js';
import { main } from './scenario.mjs';

// This version registers handlers by the schema of the message.
const SCHEMAS = {
  'sampling/createMessage': mcp.CreateMessageRequestSchema,
  'elicitation/create': mcp.ElicitRequestSchema,
  'roots/list': mcp.ListRootsRequestSchema,
  'notifications/message': mcp.LoggingMessageNotificationSchema,
  'notifications/resources/updated': mcp.ResourceUpdatedNotificationSchema,
};

await main({
  async connect(url, capabilities, { requests, notifications }) {
    const client = new Client({ name: 'typescript-1', version: '1.0.0' }, { capabilities });
    for (const [method, handle] of Object.entries(requests)) {
      client.setRequestHandler(SCHEMAS[method], ({ params }) => handle(params));
    }
    for (const [method, handle] of Object.entries(notifications)) {
      client.setNotificationHandler(SCHEMAS[method], ({ params }) => handle(params));
    }
    const transport = new StreamableHTTPClientTransport(url);
    await client.connect(transport);
    return { client, transport, protocolVersion: transport.protocolVersion };
  },
  callTool: (client, params, options) => client.callTool(params, undefined, options),
});
