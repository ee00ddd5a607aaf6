//! The one place where requests come in: routes them, asks who is there, counts and words refusals.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use http::header::{AUTHORIZATION, CONNECTION};
use http::{HeaderValue, Method, Request, Response};
use hyper::body::Incoming;

use crate::auth::{Admitted as Caller, Keys, Rejection, admit};
use crate::budget::Budget;
use crate::caller::{Arrival, Principal};
use crate::config;
use crate::exchange::capacity::Capacity;
use crate::http::accept::accepted;
use crate::http::body::Body;
use crate::http::cors::{ENDPOINT_METHODS, answer_options, expose};
use crate::http::forwarded::Proxies;
use crate::http::guard::{Admitted, Guard};
use crate::http::legacy_sse::{Channels, LegacySse};
use crate::http::page::Page;
use crate::http::patience::Patience;
use crate::http::read::Bounds;
use crate::http::refusal::Refused;
use crate::http::streamable::Streamable;
use crate::server::{Readiness, Server};
use crate::telemetry::label::{AuthResult, Route};
use crate::telemetry::{AccessLog, Metrics, RefusedLine};

/// What the door is built with.
pub struct DoorParts {
    /// `[listen]`
    pub listen: config::Listen,
    /// `[limits]`
    pub limits: config::Limits,
    /// `[streams]`
    pub streams: config::Streams,
    /// Every server.
    pub servers: Vec<Arc<Server>>,
    /// Every key.
    pub keys: Arc<Keys>,
    /// The memory budget.
    pub budget: Arc<Budget>,
    /// Whether the gateway is ready.
    pub readiness: Arc<Readiness>,
    /// The numbers.
    pub metrics: Arc<Metrics>,
    /// The access log.
    pub log: AccessLog,
    /// The node tag.
    pub node: Arc<str>,
    /// Sessions of one verified caller, unless its key says otherwise.
    pub cap: Option<usize>,
}

/// What is served at one path.
#[derive(Clone)]
struct Endpoint {
    server: Arc<Server>,
    route: Route,
    /// The path without the public prefix, for the page.
    path: Arc<str>,
}

/// The door for clients.
pub struct Door {
    guard: Guard,
    endpoints: HashMap<String, Endpoint>,
    prefix: String,
    listen: config::Listen,
    proxies: Proxies,
    keys: Arc<Keys>,
    cap: Option<usize>,
    pub(super) bounds: Bounds,
    pub(super) streams: config::Streams,
    pub(super) patience: Arc<Patience>,
    pub(super) capacity: Arc<Capacity>,
    pub(super) channels: Arc<Channels>,
    readiness: Arc<Readiness>,
    metrics: Arc<Metrics>,
    log: AccessLog,
    node: Arc<str>,
}

/// What a refused request was about, for its log line.
#[derive(Default)]
struct About {
    server: Option<Arc<Server>>,
    principal: Option<Principal>,
}

impl Door {
    /// Lays out every route.
    #[must_use]
    pub fn new(parts: DoorParts) -> Arc<Door> {
        let prefix = parts.listen.public_url.as_ref().map(|url| url.path.clone()).unwrap_or_default();
        let mut endpoints = HashMap::new();
        for server in &parts.servers {
            let path: Arc<str> = server.config().path.as_str().into();
            let mut serve = |path: &str, route| {
                let endpoint = Endpoint { server: Arc::clone(server), route, path: path.into() };
                endpoints.insert(format!("{prefix}{path}"), endpoint);
            };
            serve(&path, Route::Mcp);
            if server.config().legacy_sse {
                serve(&server.config().sse_path(), Route::Sse);
                serve(&server.config().messages_path(), Route::Messages);
            }
        }
        let limits = &parts.limits;
        Arc::new(Door {
            guard: Guard::new(&parts.listen, limits.header_fields),
            endpoints,
            prefix,
            proxies: Proxies::new(parts.listen.trusted_proxies.clone()),
            listen: parts.listen,
            keys: parts.keys,
            cap: parts.cap,
            capacity: Capacity::new(
                limits.requests_in_flight,
                limits.requests_in_flight_per_principal,
                Arc::clone(&parts.budget),
            ),
            bounds: Bounds { bytes: limits.body_bytes, idle: limits.body_idle, budget: parts.budget },
            patience: Patience::new(parts.streams.sse_after),
            streams: parts.streams,
            channels: Arc::default(),
            readiness: parts.readiness,
            metrics: parts.metrics,
            log: parts.log,
            node: parts.node,
        })
    }

    /// How long answers are waited for; somebody must run its clock.
    #[must_use]
    pub fn patience(&self) -> &Arc<Patience> {
        &self.patience
    }

    /// Answers one request.
    pub async fn handle(self: Arc<Self>, request: Request<Incoming>, arrival: Arrival) -> Response<Body> {
        let arrived = Instant::now();
        let arrival = Arrival { peer: self.proxies.client(request.headers(), arrival.peer), ..arrival };
        let endpoint = self.find(request.uri().path()).cloned();
        let route =
            endpoint.as_ref().map_or_else(|| self.health_route(request.uri().path()), |endpoint| endpoint.route);
        let mut about =
            About { server: endpoint.as_ref().map(|endpoint| Arc::clone(&endpoint.server)), principal: None };
        let admitted = match self.guard.check(&request, arrival.local_bind) {
            Ok(admitted) => admitted,
            Err(refused) => {
                let value = refused_value(&refused, &request);
                let response = self.refuse(&refused, &about, &arrival, value.as_deref()).into_response(None);
                self.metrics.http_response(route, response.status().as_u16());
                return response;
            }
        };
        let mut response = match endpoint {
            Some(endpoint) => self.serve(endpoint, request, &admitted, &arrival, arrived, &mut about).await,
            None => self.serve_health(&request, &admitted).map_err(|refused| (refused, None)),
        }
        .unwrap_or_else(|(refused, id)| self.refuse(&refused, &about, &arrival, None).into_response(id.as_deref()));
        expose(response.headers_mut(), &admitted);
        if self.readiness.is_draining() {
            // RFC 9112 section 9.6: otherwise a proxy may send the next call on a connection that
            // is just being closed, and cannot know whether it ran.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.metrics.http_response(route, response.status().as_u16());
        response
    }

    /// Ends the streams that callers who may have none any more opened before they had a session.
    pub fn revoke(&self, is_over: impl Fn(&Principal) -> bool) {
        self.channels.revoke(is_over);
    }

    /// `/x` and `/x/` are the same; nothing else is folded, and nothing is redirected, since a
    /// redirect loses the body or the credentials.
    fn find(&self, path: &str) -> Option<&Endpoint> {
        self.endpoints.get(path).or_else(|| self.endpoints.get(path.strip_suffix('/')?))
    }

    /// A path without the public prefix.
    fn own<'p>(&self, path: &'p str) -> &'p str {
        path.strip_prefix(&self.prefix).unwrap_or(path)
    }

    fn health_route(&self, path: &str) -> Route {
        if self.listen.health && matches!(self.own(path), "/livez" | "/readyz") { Route::Health } else { Route::Other }
    }

    async fn serve(
        &self,
        endpoint: Endpoint,
        request: Request<Incoming>,
        admitted: &Admitted,
        arrival: &Arrival,
        arrived: Instant,
        about: &mut About,
    ) -> Result<Response<Body>, (Refused, Option<Vec<u8>>)> {
        if request.method() == Method::OPTIONS {
            return Ok(answer_options(request.headers(), admitted, ENDPOINT_METHODS));
        }
        if let Some(page) = self.page(&endpoint, &request) {
            return Ok(page);
        }
        let caller = self.authenticate(&endpoint.server, &request).map_err(|refused| (refused, None))?;
        about.principal = Some(caller.principal.clone());
        let call = Caller { sessions: caller.sessions.or(self.cap), ..caller };
        let streamable = Streamable {
            door: self,
            server: &endpoint.server,
            caller: call,
            peer: arrival.peer,
            fate: &arrival.fate,
            arrived,
        };
        match endpoint.route {
            Route::Sse => LegacySse::new(streamable, &self.prefix).open(&request).map_err(|refused| (refused, None)),
            Route::Messages => {
                // As rare as large.
                let channel = LegacySse::new(streamable, &self.prefix);
                Box::pin(channel.post(request)).await
            }
            _ => match *request.method() {
                Method::POST => streamable.post(request).await,
                Method::GET => streamable.get(&request).map_err(|refused| (refused, None)),
                Method::DELETE => streamable.delete(&request).map_err(|refused| (refused, None)),
                _ => Err((Refused::Method(ENDPOINT_METHODS), None)),
            },
        }
    }

    /// A browser that opens an endpoint's address gets words instead of a protocol error.
    fn page(&self, endpoint: &Endpoint, request: &Request<Incoming>) -> Option<Response<Body>> {
        if !self.listen.page || request.method() != Method::GET || !accepted(request.headers()).html {
            return None;
        }
        let base = match &self.listen.public_url {
            Some(url) => url.to_string(),
            None => format!("http://{}", request.headers().get(http::header::HOST)?.to_str().ok()?),
        };
        let needs_key = endpoint.server.config().auth.methods.contains(&config::Method::ApiKey);
        let url = format!("{base}{}", endpoint.path);
        Some(Page { name: endpoint.server.name(), url: &url, needs_key }.into_response())
    }

    fn authenticate(&self, server: &Server, request: &Request<Incoming>) -> Result<Caller, Refused> {
        let policy = &server.config().auth;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let shown = request.headers().get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes);
        let verdict = admit(&self.keys, policy, shown, server.name(), now);
        if policy.methods.contains(&config::Method::ApiKey) {
            let label = verdict.as_ref().map_or_else(|rejection| rejection.label(), |_| AuthResult::Ok);
            self.metrics.auth_check("api_key", label);
        }
        verdict.map_err(|rejection| match rejection {
            rejection if rejection.is_malformed() => Refused::BadHeader("There must be one Authorization header"),
            Rejection::Missing => Refused::Unauthenticated(HeaderValue::from_static("Bearer")),
            _ => Refused::Unauthenticated(HeaderValue::from_static("Bearer error=\"invalid_token\"")),
        })
    }

    fn serve_health(&self, request: &Request<Incoming>, admitted: &Admitted) -> Result<Response<Body>, Refused> {
        if self.health_route(request.uri().path()) == Route::Other {
            return Err(Refused::NotFound);
        }
        match *request.method() {
            Method::OPTIONS => Ok(answer_options(request.headers(), admitted, "GET, OPTIONS")),
            Method::GET | Method::HEAD => Ok(super::admin::health(&self.readiness, self.own(request.uri().path()))),
            _ => Err(Refused::Method("GET, OPTIONS")),
        }
    }

    /// Counts and logs a refusal before it is answered.
    fn refuse(&self, refused: &Refused, about: &About, arrival: &Arrival, value: Option<&str>) -> Refused {
        if let Some(reason) = refused.label() {
            match &about.server {
                Some(server) => server.metrics().refused(reason),
                None => self.metrics.refused_unrouted(reason),
            }
            self.log.refused(&RefusedLine {
                node: &self.node,
                server: about.server.as_ref().map(|server| &**server.name()),
                status: refused.status().as_u16(),
                reason,
                key: refused.key(),
                value,
                principal: about.principal.as_ref(),
                client_addr: Some(arrival.peer),
            });
        }
        refused.clone()
    }
}

/// The header a refused host or origin stood in, for the log.
fn refused_value(refused: &Refused, request: &Request<Incoming>) -> Option<String> {
    let name = match refused {
        Refused::HostForbidden => http::header::HOST,
        Refused::OriginForbidden => http::header::ORIGIN,
        _ => return None,
    };
    request.headers().get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}
