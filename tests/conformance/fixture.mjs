// A stdio MCP server on the official TypeScript SDK 1.x with every tool, prompt and resource that the official
// conformance suite asks for, and with the tools that the client scripts call. The suite is run against a gateway that
// has this program as its child.
//
//   node fixture.mjs        speaks MCP on stdin and stdout until stdin ends
//
// direct.mjs serves the same server without a gateway: what fails there is the fixture's or the suite's, not ours.
import { realpathSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import * as mcp from '@modelcontextprotocol/sdk/types.js';
import { createDemo } from './fixture/demo.mjs';
import { listedPrompts, prompts } from './fixture/prompts.mjs';
import { createResources } from './fixture/resources.mjs';
import { suiteTools, text } from './fixture/tools.mjs';

const ASKABLE = {
  'sampling/createMessage': { capability: 'sampling', result: mcp.CreateMessageResultSchema },
  'elicitation/create': { capability: 'elicitation', result: mcp.ElicitResultSchema },
  'roots/list': { capability: 'roots', result: mcp.ListRootsResultSchema },
};

function unknown(what, data) {
  return new mcp.McpError(mcp.ErrorCode.InvalidParams, `Unknown ${what}`, data);
}

/** What a running tool may do; see fixture/tools.mjs for the contract. */
function callContext(server, params, extra) {
  const notify = (method, body) => extra.sendNotification({ method, params: body });
  return {
    notify,
    signal: extra.signal,
    closeStream: () => extra.closeSSEStream?.(),
    async progress(progress, total) {
      const progressToken = params._meta?.progressToken;
      if (progressToken !== undefined) await notify('notifications/progress', { progressToken, progress, total });
    },
    async ask(method, body) {
      const { capability, result } = ASKABLE[method];
      if (!server.getClientCapabilities()?.[capability]) throw new Error(`The client does not support ${capability}`);
      return extra.sendRequest({ method, params: body }, result);
    },
  };
}

function serveTools(server, tools) {
  server.setRequestHandler(mcp.ListToolsRequestSchema, () => ({
    tools: Object.entries(tools).map(([name, { inputSchema }]) => ({ name, description: `Test tool ${name}`, inputSchema })),
  }));
  server.setRequestHandler(mcp.CallToolRequestSchema, async ({ params }, extra) => {
    const tool = tools[params.name];
    if (!tool) throw unknown('tool', { name: params.name });
    try {
      return await tool.run(params.arguments ?? {}, callContext(server, params, extra));
    } catch (error) {
      return { ...text(String(error.message)), isError: true };
    }
  });
}

function servePrompts(server) {
  server.setRequestHandler(mcp.ListPromptsRequestSchema, () => ({ prompts: listedPrompts() }));
  server.setRequestHandler(mcp.GetPromptRequestSchema, ({ params }) => {
    const prompt = prompts[params.name];
    if (!prompt) throw unknown('prompt', { name: params.name });
    return { messages: prompt.messages(params.arguments ?? {}) };
  });
  server.setRequestHandler(mcp.CompleteRequestSchema, ({ params }) => {
    const values = ['test', 'testing', 'tested'].filter((value) => value.startsWith(params.argument.value));
    return { completion: { values, total: values.length, hasMore: false } };
  });
}

function serveResources(server, resources, subscriptions) {
  server.setRequestHandler(mcp.ListResourcesRequestSchema, () => ({ resources: resources.list() }));
  server.setRequestHandler(mcp.ListResourceTemplatesRequestSchema, () => ({ resourceTemplates: resources.templates }));
  server.setRequestHandler(mcp.ReadResourceRequestSchema, ({ params: { uri } }) => {
    const contents = resources.read(uri);
    if (!contents) throw unknown('resource', { uri });
    return { contents };
  });
  server.setRequestHandler(mcp.SubscribeRequestSchema, ({ params: { uri } }) => {
    subscriptions.add(uri);
    return {};
  });
  server.setRequestHandler(mcp.UnsubscribeRequestSchema, ({ params: { uri } }) => {
    subscriptions.delete(uri);
    return {};
  });
}

/** A server that is not connected to anything yet. */
export function createServer() {
  const server = new Server(
    { name: 'conformance-fixture', version: '1.0.0' },
    { capabilities: { tools: {}, prompts: {}, resources: { subscribe: true }, completions: {}, logging: {} } },
  );
  const demo = createDemo();
  serveTools(server, { ...suiteTools, ...demo.tools });
  servePrompts(server);
  serveResources(server, createResources(demo.resources), demo.subscriptions);
  server.setRequestHandler(mcp.SetLevelRequestSchema, ({ params: { level } }) => {
    demo.setLevel(level);
    return {};
  });
  return server;
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  process.stdin.on('end', () => process.exit(0));
  await createServer().connect(new StdioServerTransport());
}
