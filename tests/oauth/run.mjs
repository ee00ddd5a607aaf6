// The gateway as OAuth resource server beside authorization servers and clients that other people wrote: npm's
// oidc-provider with the official SDKs, and npm's oauth2-mock-server in the place of five vendors.
//
//   node run.mjs [provider] [vendors] [clients]     default: all three
//
// Everything runs on free loopback ports, which is where the SDKs take plain HTTP. Ends with "oauth: N passed, N failed"
// on a line; exit status 0 only when nothing failed.
import { setTimeout as delay } from 'node:timers/promises';
import { report } from '../clients/steps.mjs';
import { BINARY, server, startGateway } from '../gateway.mjs';
import { AuthorizationServer } from './authorization-server.mjs';
import { startBrowser } from './browser.mjs';
import { runClients } from './clients.mjs';
import { startFront } from './front.mjs';
import { pageSteps } from './operator.mjs';
import { providerSteps } from './provider.mjs';
import { NAMES, Vendor } from './vendors.mjs';

const GROUPS = ['provider', 'vendors', 'clients'];
const demo = (name) => server(name, BINARY, ['demo-server']);
const resourceOf = (front, name) => `${front.url}/${name}/mcp`;

/** What serves `servers` under the address of `front` to holders of the tokens of `issuers`, as TOML. */
const configure = (front, issuers, servers) => `
[listen]
address = "127.0.0.1:0"
public_url = "${front.url}"

[admin]
address = "127.0.0.1:0"

[drain]
prestop = "0s"

[auth]
methods = ["oauth"]

${issuers}
${servers}`;

/** A server for holders of one issuer's tokens, and more for those who may write. */
const guarded = (name) => `${demo(name)}
[servers.${name}.auth]
issuers = ["${name}"]
scopes = ["mcp:use"]
tools = { update_resource = ["mcp:write"] }
`;

/** Starts the gateway behind a front of its own, and waits until it has the keys of its issuers. */
async function start(log, issuers, servers) {
  const front = await startFront();
  const configuration = configure(front, issuers, servers);
  const gateway = await startGateway(configuration, log);
  front.leadTo(new URL(gateway.url('x')).origin);
  while (!(await fetch(`http://${gateway.admin}/readyz`)).ok) await delay(10);
  return { front, gateway, configuration };
}

/** Starts the gateway for both authorization servers: `{ jwt, opaque, end }`. */
async function startWithProviders(log) {
  const [jwt, opaque] = await Promise.all(['jwt', 'opaque'].map((format) => AuthorizationServer.start(format)));
  const { client_id: id, client_secret: secret } = opaque.gateway;
  const issuers = `[auth.issuers.jwt]
issuer = "${jwt.issuer}"
leeway = "0s"

[auth.issuers.opaque]
issuer = "${opaque.issuer}"
tokens = "opaque"
introspection = { client_id = "${id}", client_secret = "${secret}", cache = "0s" }
`;
  const { front, gateway, configuration } = await start(log, issuers, guarded('jwt') + guarded('opaque'));
  const parties = { jwt: { server: jwt, resource: resourceOf(front, 'jwt') }, opaque: { server: opaque, resource: resourceOf(front, 'opaque') } };
  for (const { server: party, resource } of Object.values(parties)) party.serve(resource, 'mcp:use', 'mcp:write');
  const end = async () => {
    await gateway.stop();
    front.close();
    jwt.stop();
    opaque.stop();
  };
  return { ...parties, configuration, end };
}

const groups = {
  async provider() {
    const { jwt, opaque, configuration, end } = await startWithProviders('oauth-provider.log');
    return { steps: [...providerSteps(jwt, opaque, configuration), ['provider-end', end]], passed: 0, failed: 0 };
  },

  async vendors() {
    const vendors = await Promise.all(NAMES.map((name) => Vendor.start(name)));
    const servers = vendors.map((vendor) => demo(vendor.name) + vendor.serverTable()).join('\n');
    const { front, gateway, configuration } = await start('oauth-vendors.log', vendors.map((vendor) => vendor.issuerTable()).join('\n'), servers);
    const steps = vendors.flatMap((vendor) => vendor.steps(resourceOf(front, vendor.name), configuration));
    const end = async () => {
      await gateway.stop();
      front.close();
      await Promise.all(vendors.map((vendor) => vendor.stop()));
    };
    return { steps: [...steps, ...pageSteps('keycloak', 'entra', 'auth0'), ['vendors-end', end]], passed: 0, failed: 0 };
  },

  async clients() {
    const [{ jwt, end }, browser] = await Promise.all([startWithProviders('oauth-clients.log'), startBrowser()]);
    const { steps, ...counts } = await runClients(jwt.server, jwt.resource, browser.url);
    browser.close();
    return { steps: [...steps, ['clients-end', end]], ...counts };
  },
};

const chosen = process.argv.length > 2 ? process.argv.slice(2) : GROUPS;
const stranger = chosen.find((name) => !(name in groups));
if (stranger) {
  console.error(`no such group: ${stranger} (${GROUPS.join(', ')})`);
  process.exit(2);
}
let [passed, failed] = [0, 0];
for (const name of chosen) {
  const { steps, ...counts } = await groups[name]();
  const bad = await report(steps);
  passed += counts.passed + steps.length - bad;
  failed += counts.failed + bad;
}
console.log(`oauth: ${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
