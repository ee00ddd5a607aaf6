// sslyze against a TLS listener of the gateway, whose pair certs/development.sh made.
//
// Ends with "tls: N passed, N failed" on a line; exit status 0 only when nothing failed.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { runProgram } from '../clients/program.mjs';
import { BINARY, server, startGateway } from '../gateway.mjs';

const HERE = path.dirname(fileURLToPath(import.meta.url));
const folder = mkdtempSync(path.join(tmpdir(), 'gangway-tls-'));
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
const file = (name) => path.join(folder, name);

execFileSync(path.join(HERE, '../../certs/development.sh'), [folder], { stdio: 'ignore' });
const gateway = await startGateway(`
[listen]
address = "127.0.0.1:0"

[listen.tls]
certificates = [{ cert = "${file('server.pem')}", key = "${file('server-key.pem')}" }]

[admin]
address = "off"

[drain]
prestop = "0s"

${server('demo', BINARY, ['demo-server'])}`, 'tls-gateway.log');
const { port } = new URL(gateway.url('demo'));
const scan = [path.join(HERE, '../.setup/python-sslyze/bin/python'), '-B', '-W', 'ignore', path.join(HERE, 'scan.py'), port, file('authority.pem')];
const { passed, failed } = await runProgram('sslyze', scan);
await gateway.stop();
console.log(`tls: ${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
