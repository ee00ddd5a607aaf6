// Two servers that other people wrote, one in JavaScript and one in Python, used through the gateway.
//   node real-servers.mjs URL_OF_EVERYTHING URL_OF_TIME
import assert from 'node:assert/strict';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CreateMessageRequestSchema, ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { report } from './steps.mjs';

async function connect(url) {
  const client = new Client({ name: 'real-servers', version: '1.0.0' }, { capabilities: { sampling: {}, elicitation: {} } });
  client.setRequestHandler(CreateMessageRequestSchema, () => ({
    role: 'assistant',
    model: 'test-model',
    content: { type: 'text', text: 'forty-two' },
  }));
  client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'decline' }));
  const transport = new StreamableHTTPClientTransport(new URL(url));
  await client.connect(transport);
  const call = async (name, args = {}, options) => {
    const result = await client.callTool({ name, arguments: args }, undefined, options);
    assert.ok(!result.isError, result.content[0]?.text);
    return result.content.map(({ text }) => text ?? '').join('\n');
  };
  return {
    client,
    call,
    async close() {
      await transport.terminateSession();
      await client.close();
    },
  };
}

let everything;
let time;
const failed = await report([
  ['everything-connect', async () => {
    everything = await connect(process.argv[2]);
    assert.match(everything.client.getServerVersion().name, /everything/);
  }],
  ['everything-list', async () => {
    assert.ok((await everything.client.listTools()).tools.length > 5);
    assert.ok((await everything.client.listResources()).resources.length > 0);
    assert.ok((await everything.client.listPrompts()).prompts.length > 0);
  }],
  ['everything-call', async () => {
    assert.match(await everything.call('echo', { message: 'grüße ☃' }), /grüße ☃/);
    assert.match(await everything.call('get-sum', { a: 2, b: 40 }), /42/);
  }],
  ['everything-progress', async () => {
    const seen = [];
    const onprogress = ({ progress }) => void seen.push(progress);
    await everything.call('trigger-long-running-operation', { duration: 0.5, steps: 4 }, { onprogress });
    assert.deepEqual(seen, [1, 2, 3, 4]);
  }],
  ['everything-sampling', async () => {
    assert.match(await everything.call('trigger-sampling-request', { prompt: 'the question' }), /forty-two/);
  }],
  ['everything-elicitation', async () => {
    assert.match(await everything.call('trigger-elicitation-request'), /decline/i);
  }],
  ['everything-close', () => everything.close()],
  ['time-connect', async () => {
    time = await connect(process.argv[3]);
  }],
  ['time-call', async () => {
    assert.match(await time.call('get_current_time', { timezone: 'Asia/Kathmandu' }), /"timezone": "Asia\/Kathmandu"/);
    const noon = { source_timezone: 'UTC', target_timezone: 'Asia/Kathmandu', time: '12:00' };
    assert.match(await time.call('convert_time', noon), /T17:45:00\+05:45/);
  }],
  ['time-close', () => time.close()],
]);
process.exit(failed ? 1 : 0);
