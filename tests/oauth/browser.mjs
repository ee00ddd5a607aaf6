// The user at a browser, for clients that send one to log in: follows redirects, keeps cookies, and fills in the forms of
// the authorization server, until it is sent to an address of another origin. That is where the client listens; the
// browser does not go there, it hands the address over.
import { once } from 'node:events';
import { createServer } from 'node:http';

const MOST_PAGES = 20;

/** The user who logs in; `sub` of the tokens. */
export const USER = 'ada';

/** A cookie jar for one origin. */
class Cookies {
  #values = new Map();

  take(response) {
    for (const line of response.headers.getSetCookie()) {
      const [, name, value] = /^([^=]+)=([^;]*)/.exec(line);
      if (value === '') this.#values.delete(name);
      else this.#values.set(name, value);
    }
  }

  toString() {
    return [...this.#values].map(([name, value]) => `${name}=${value}`).join('; ');
  }
}

/** What a user would send with the page's only form: its hidden fields as they are, a name and a password where they are asked for. */
function filledForm(html, page) {
  const action = /<form[^>]* action="([^"]+)"/.exec(html)?.[1];
  if (!action) throw new Error(`no form on ${page}: ${html.slice(0, 300)}`);
  const fields = new URLSearchParams();
  for (const [input] of html.matchAll(/<input[^>]*>/g)) {
    const attribute = (name) => new RegExp(` ${name}="([^"]*)"`).exec(input)?.[1];
    fields.set(attribute('name'), attribute('type') === 'hidden' ? attribute('value') : USER);
  }
  return { url: new URL(action.replaceAll('&amp;', '&'), page), body: fields };
}

/** Visits `start` and does what the pages ask for; gives the first address outside of their origin. */
export async function visit(start) {
  const cookies = new Cookies();
  const { origin } = new URL(start);
  let next = { url: new URL(start) };
  for (let pages = 0; pages < MOST_PAGES; pages += 1) {
    const { url, body } = next;
    const response = await fetch(url, { method: body ? 'POST' : 'GET', body, redirect: 'manual', headers: { cookie: String(cookies) } });
    cookies.take(response);
    const location = response.headers.get('location');
    if (location) {
      await response.body?.cancel();
      next = { url: new URL(location, url) };
      if (next.url.origin !== origin) return next.url.href;
    } else {
      const html = await response.text();
      if (response.status !== 200) throw new Error(`${url} was answered with ${response.status}: ${html.slice(0, 300)}`);
      next = filledForm(html, url);
    }
  }
  throw new Error(`${start} leads to no end`);
}

/** A browser for programs in any language: `GET /?visit=ADDRESS` is answered with the address that comes out. */
export async function startBrowser() {
  const server = createServer(async (request, response) => {
    try {
      response.end(await visit(new URL(request.url, 'http://browser').searchParams.get('visit')));
    } catch (error) {
      response.writeHead(500).end(error.message);
    }
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { url: `http://127.0.0.1:${server.address().port}/`, close: () => server.close() };
}
