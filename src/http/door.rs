//! The one place where requests come in: routes them, asks who is there, counts and words refusals.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::sleep;

use crate::auth::{self, Admitted as Caller, Answer, Issuers, Keys, Verdict, admit, admit_certificate};
use crate::budget::Budget;
use crate::caller::{Arrival, Malformed, Principal};
use crate::config;
use crate::exchange::audit::Asked;
use crate::exchange::capacity::Capacity;
use crate::http::accept::accepted;
use crate::http::body::Body;
use crate::http::cors::{ENDPOINT_METHODS, answer_options, expose};
use crate::http::guard::{Admitted, Guard};
use crate::http::legacy_sse::{Channels, LegacySse};
use crate::http::metadata;
use crate::http::page::Page;
use crate::http::patience::Patience;
use crate::http::quota::{Over, SWEEP};
use crate::http::refusal::Refused;
use crate::http::rules::{Endpoint, Rules, RulesParts};
use crate::http::streamable::{SESSION_ID, Streamable};
use crate::rare::rarely;
use crate::server::{Readiness, Server};
use crate::telemetry::label::{AuthMethod, AuthResult, Outcome, Refusal as Reason, Route};
use crate::telemetry::{AccessLog, AuditEntry, AuditEvent, Metrics, NotAudited, Occasion, RefusedLine, TraceId};
use crate::unix_time;

/// A line at most this often about rates that are used up: who floods must not fill the log.
const RATE_LINE_EVERY: Duration = Duration::from_secs(10);
/// How long an answer waits that comes after an address has used up its rate. Whoever asks again and again is held up by
/// it and takes no processor from others; whoever does not hardly notices.
const PACE: Duration = Duration::from_millis(15);
/// The challenge of a server that only takes client certificates, which no header can answer. Clients that know no
/// such scheme give up, and rightly: `Bearer` would send them looking for an authorization server.
const CERTIFICATE: HeaderValue = HeaderValue::from_static("Certificate");

/// What the door is built with and keeps.
pub struct DoorParts {
    /// Every key.
    pub keys: Arc<Keys>,
    /// Every issuer of access tokens.
    pub issuers: Arc<Issuers>,
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
}

/// The door for clients.
pub struct Door {
    /// Cloned out once by each request; written when the configuration is read again.
    rules: RwLock<Arc<Rules>>,
    keys: Arc<Keys>,
    issuers: Arc<Issuers>,
    budget: Arc<Budget>,
    pub(super) patience: Arc<Patience>,
    pub(super) capacity: Arc<Capacity>,
    pub(super) channels: Arc<Channels>,
    readiness: Arc<Readiness>,
    metrics: Arc<Metrics>,
    log: AccessLog,
    node: Arc<str>,
    /// Of the log of used up rates.
    pace: Occasion,
}

/// A request that was let in, without itself.
struct Visit<'a> {
    rules: &'a Rules,
    admitted: &'a Admitted,
    arrival: &'a Arrival,
    arrived: Instant,
    /// The rate of its address, if that is used up.
    over: Option<Over>,
}

/// What a refused request was about, for its log line.
struct About<'a> {
    server: Option<&'a Server>,
    principal: Option<Principal>,
    /// What its message asked for, where that was read.
    asked: OnceLock<Asked>,
}

/// What of a refused request stands in logs.
struct Details<'a> {
    /// The header that was wrong.
    value: Option<&'a str>,
    /// The request's id.
    id: Option<&'a [u8]>,
}

impl Door {
    /// A door with these rules.
    #[must_use]
    pub fn new(parts: DoorParts, rules: &RulesParts<'_>) -> Arc<Door> {
        let limits = rules.limits;
        let DoorParts { keys, issuers, budget, readiness, metrics, log, node } = parts;
        Arc::new(Door {
            rules: RwLock::new(Rules::new(rules, Arc::clone(&budget), None)),
            keys,
            issuers,
            capacity: Capacity::new(
                limits.requests_in_flight,
                limits.requests_in_flight_per_principal,
                Arc::clone(&budget),
            ),
            budget,
            patience: Patience::new(rules.streams.sse_after),
            channels: Arc::default(),
            readiness,
            metrics,
            log,
            node,
            pace: Occasion::each(RATE_LINE_EVERY),
        })
    }

    /// Judges every request that comes from now on by these rules.
    pub fn set_rules(&self, parts: &RulesParts<'_>) {
        let limits = parts.limits;
        self.capacity.set_bounds(limits.requests_in_flight, limits.requests_in_flight_per_principal);
        self.patience.set_length(parts.streams.sse_after);
        let rules = Rules::new(parts, Arc::clone(&self.budget), Some(&self.rules()));
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The server that takes the new sessions of this one, which takes none any more.
    pub(super) fn successor(&self, of: &Arc<Server>) -> Option<Arc<Server>> {
        let rules = self.rules();
        let now = rules.server(of.name()).filter(|now| !Arc::ptr_eq(now, of) && !now.is_draining());
        now.map(Arc::clone)
    }

    /// Forgets whom it changes nothing to forget, for ever.
    pub async fn sweep_quotas(&self) {
        loop {
            sleep(SWEEP).await;
            self.rules().quotas.sweep();
        }
    }

    /// How long answers are waited for; somebody must run its clock.
    #[must_use]
    pub fn patience(&self) -> &Arc<Patience> {
        &self.patience
    }

    /// Refuses what was no request, which ends its connection.
    fn refuse_malformed(&self, malformed: Malformed, arrival: &Arrival) -> Response<Body> {
        let about = About { server: None, principal: None, asked: OnceLock::new() };
        let details = Details { value: None, id: None };
        let response = self.refuse(&Refused::Malformed(malformed), &about, arrival, details).into_response(None);
        self.metrics.http_response(Route::Other, response.status().as_u16());
        response
    }

    /// Refuses a request for what its head shows, whoever asks.
    fn refuse_head(
        &self,
        refused: &Refused,
        request: &Request<Incoming>,
        about: &About<'_>,
        arrival: &Arrival,
    ) -> Response<Body> {
        let value = refused_value(refused, request);
        self.refuse(refused, about, arrival, Details { value: value.as_deref(), id: None }).into_response(None)
    }

    /// Answers one request; what was none is refused.
    #[expect(clippy::manual_async_fn, reason = "an async fn has two places for each argument, and is moved with both")]
    pub fn handle(
        self: Arc<Self>,
        mut asked: Result<Request<Incoming>, Malformed>,
        arrival: Arrival,
    ) -> impl Future<Output = Response<Body>> + Send {
        // The request is lent to all that follows, not given: it would have a place in each of their futures.
        async move {
            match &mut asked {
                Ok(request) => self.answer(request, arrival).await,
                Err(malformed) => self.refuse_malformed(*malformed, &arrival),
            }
        }
    }

    async fn answer(&self, request: &mut Request<Incoming>, arrival: Arrival) -> Response<Body> {
        let arrived = Instant::now();
        let rules = self.rules();
        let arrival = Arrival { peer: rules.proxies.client(request.headers(), arrival.peer), ..arrival };
        if let Some(document) = rules.metadata(request.uri().path()) {
            let response = self.serve_metadata(&rules, document, request, &arrival);
            return if response.status() == StatusCode::TOO_MANY_REQUESTS { paced(response).await } else { response };
        }
        let endpoint = rules.find(request.uri().path());
        let route = endpoint.map_or_else(|| rules.health_route(request.uri().path()), |endpoint| endpoint.route);
        let mut about =
            About { server: endpoint.map(|endpoint| &*endpoint.server), principal: None, asked: OnceLock::new() };
        let is_h2 = request.version() == Version::HTTP_2;
        let has_body = has_unread_body(request);
        let checked = rules.guard.check(request, arrival.local_bind);
        let admitted = match checked.and_then(|admitted| Guard::check_content(request).map(|()| admitted)) {
            Ok(admitted) => admitted,
            Err(refused) => {
                let mut response = self.refuse_head(&refused, request, &about, &arrival);
                if has_body {
                    close(&mut response);
                }
                self.metrics.http_response(route, response.status().as_u16());
                return response;
            }
        };
        let over = if route == Route::Health { None } else { rules.count_address(arrival.peer).err() };
        let visit = Visit { rules: &rules, admitted: &admitted, arrival: &arrival, arrived, over };
        let mut response = match (endpoint, over) {
            (Some(endpoint), _) => self.serve(endpoint, request, &visit, &mut about).await,
            (None, Some(over)) => Err((Refused::Rate(over), None)),
            (None, None) => self.serve_health(request, &visit).map_err(|refused| (refused, None)),
        }
        .unwrap_or_else(|(refused, id)| {
            let details = Details { value: None, id: id.as_deref() };
            let mut response = self.refuse(&refused, &about, &arrival, details).into_response(id.as_deref());
            if has_body && (about.principal.is_none() || is_before_body(response.status())) {
                close(&mut response);
            }
            response
        });
        expose(response.headers_mut(), &admitted);
        if self.readiness.is_draining() && is_h2 {
            arrival.fate.leave();
        } else if self.readiness.is_draining() {
            // RFC 9112 section 9.6: otherwise a proxy may send the next call on a connection that
            // is just being closed, and cannot know whether it ran.
            close(&mut response);
        }
        self.metrics.http_response(route, response.status().as_u16());
        if over.is_some() { paced(response).await } else { response }
    }

    /// Ends the streams that callers who may have none any more opened before they had a session, and those whose callers
    /// have shown nothing that is valid at `now_unix`, in seconds since the Unix epoch.
    pub fn revoke(&self, is_over: impl Fn(&Principal) -> bool, now_unix: u64) {
        self.channels.revoke(is_over, now_unix);
    }

    /// The same at the server with this name only.
    pub fn revoke_at(&self, server: &str, is_over: impl Fn(&Principal) -> bool) {
        self.channels.revoke_at(server, is_over);
    }

    /// Ends the streams that were opened at this server before there was a session.
    pub fn leave(&self, server: &str) {
        self.channels.leave(server);
    }

    async fn serve(
        &self,
        endpoint: &Endpoint,
        request: &mut Request<Incoming>,
        visit: &Visit<'_>,
        about: &mut About<'_>,
    ) -> Result<Response<Body>, (Refused, Option<Vec<u8>>)> {
        let too_fast = visit.over.map(Refused::Rate);
        if let Some(too_fast) = too_fast.clone().filter(|_| !may_be_of_session(endpoint, request.headers())) {
            return Err((too_fast, None));
        }
        if request.method() == Method::OPTIONS {
            return Ok(answer_options(request.headers(), visit.admitted, ENDPOINT_METHODS));
        }
        if endpoint.leaving && endpoint.route != Route::Messages && !request.headers().contains_key(SESSION_ID) {
            return Err((Refused::NotFound, None));
        }
        if let Some(page) = page(visit.rules, endpoint, request) {
            return Ok(page);
        }
        let caller = self.authenticate(endpoint, request, visit).await.map_err(|refused| {
            // The same for every session there is and whoever asks.
            (too_fast.clone().unwrap_or(refused), None)
        })?;
        about.principal = Some(caller.principal.clone());
        visit.arrival.fate.let_in();
        let Visit { rules, arrival, arrived, over, .. } = *visit;
        let over = over.or_else(|| rules.quotas.count_request(&caller.principal).err());
        let call = Caller { sessions: caller.sessions.or(rules.cap), ..caller };
        let mut streamable = Streamable {
            door: self,
            rules,
            server: &endpoint.server,
            access: &endpoint.access,
            caller: call,
            peer: arrival.peer,
            trace: request.headers().get("traceparent").and_then(|value| TraceId::from_traceparent(value.as_bytes())),
            fate: &arrival.fate,
            arrived,
            asked: &about.asked,
            over,
        };
        let answer = match endpoint.route {
            Route::Sse => LegacySse::new(streamable).open(request).map_err(|refused| (refused, None)),
            Route::Messages => {
                let mut channel = LegacySse::new(streamable);
                rarely(|| channel.post(request)).await
            }
            _ => match *request.method() {
                Method::POST => streamable.post(request).await,
                Method::GET => streamable.get(request).map_err(|refused| (refused, None)),
                Method::DELETE => streamable.delete(request).map_err(|refused| (refused, None)),
                _ => Err((Refused::Method(ENDPOINT_METHODS), None)),
            },
        };
        match (answer, too_fast) {
            (Err((Refused::SessionUnknown, id)), Some(too_fast)) => Err((too_fast, id)),
            (answer, _) => answer,
        }
    }

    async fn authenticate(
        &self,
        endpoint: &Endpoint,
        request: &Request<Incoming>,
        visit: &Visit<'_>,
    ) -> Result<Caller, Refused> {
        let Endpoint { server, policy, access, .. } = endpoint;
        let headers = request.headers();
        if shows_two(request) && !policy.methods.contains(&config::Method::None) {
            return Err(access.malformed("A token belongs in the Authorization header alone"));
        }
        let now_unix = unix_time::seconds();
        // What a request shows itself comes before what its connection showed, and does not fall back to it: the
        // sessions of the one are not those of the other. Where nothing else counts it is not looked at.
        let only_certificates = policy.methods == [config::Method::Mtls];
        let certificate = visit.arrival.certificate.as_deref();
        if policy.methods.contains(&config::Method::Mtls)
            && (only_certificates || (certificate.is_some() && !headers.contains_key(AUTHORIZATION)))
        {
            let verdict = admit_certificate(certificate, now_unix);
            let label = verdict.as_ref().map_or_else(|rejection| rejection.label(), |_| AuthResult::Ok);
            self.metrics.auth_check(AuthMethod::Mtls, label);
            return verdict.map_err(|_| Refused::Unauthenticated(CERTIFICATE));
        }
        let thumbprint = certificate.map(|certificate| &certificate.thumbprint);
        let asked = auth::Asked { server: server.name(), policy, thumbprint, now_unix };
        let shown = headers.get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes);
        let Verdict { method, outcome } = admit(&self.keys, &self.issuers, &asked, shown).await;
        if let Some(method) = method {
            let label = outcome.as_ref().map_or_else(|rejection| rejection.label(), |_| AuthResult::Ok);
            self.metrics.auth_check(method, label);
        }
        outcome.map_err(|rejection| {
            if matches!(rejection.answer(), Answer::InvalidToken(_)) {
                visit.rules.count_guess(visit.arrival.peer);
            }
            access.refuse(rejection)
        })
    }

    /// Answers for the metadata of a server, which is for everybody and every page. Not under any name, though: a page
    /// that points its own name here may not use the gateway's address as its own.
    fn serve_metadata(
        &self,
        rules: &Rules,
        document: &Bytes,
        request: &Request<Incoming>,
        arrival: &Arrival,
    ) -> Response<Body> {
        let about = About { server: None, principal: None, asked: OnceLock::new() };
        let admitted = rules.guard.check_public(request, arrival.local_bind);
        let answer = admitted.and_then(|_| {
            rules.count_address(arrival.peer).map_err(Refused::Rate)?;
            metadata::answer(request.method(), document)
        });
        let mut response = answer.unwrap_or_else(|refused| self.refuse_head(&refused, request, &about, arrival));
        if has_unread_body(request) {
            close(&mut response);
        }
        self.metrics.http_response(Route::WellKnown, response.status().as_u16());
        response
    }

    fn serve_health(&self, request: &Request<Incoming>, visit: &Visit<'_>) -> Result<Response<Body>, Refused> {
        let Visit { rules, admitted, .. } = *visit;
        if rules.health_route(request.uri().path()) == Route::Other {
            return Err(Refused::NotFound);
        }
        match *request.method() {
            Method::OPTIONS => Ok(answer_options(request.headers(), admitted, "GET, OPTIONS")),
            Method::GET | Method::HEAD => Ok(super::admin::health(&self.readiness, rules.own(request.uri().path()))),
            _ => Err(Refused::Method("GET, OPTIONS")),
        }
    }

    /// Counts and logs a refusal before it is answered, of used up rates only some; one that must be in the audit log and cannot be is another one.
    fn refuse(&self, refused: &Refused, about: &About<'_>, arrival: &Arrival, details: Details<'_>) -> Refused {
        if let Some(reason) = refused.label() {
            match about.server {
                Some(server) => server.metrics().refused(reason),
                None => self.metrics.refused_unrouted(reason),
            }
            if reason == Reason::Rate && self.pace.take().is_none() {
                return refused.clone();
            }
            self.log.refused(&RefusedLine {
                node: &self.node,
                server: about.server.map(|server| &**server.name()),
                status: refused.status().as_u16(),
                reason,
                key: refused.key(),
                value: details.value,
                principal: about.principal.as_ref(),
                client_addr: Some(arrival.peer),
            });
        }
        match self.audit(refused, about, arrival, details.id) {
            Ok(()) => refused.clone(),
            Err(NotAudited) => Refused::NotAudited,
        }
    }

    fn audit(
        &self,
        refused: &Refused,
        about: &About<'_>,
        arrival: &Arrival,
        id: Option<&[u8]>,
    ) -> Result<(), NotAudited> {
        if about.server.is_none() && *refused == Refused::NotFound {
            return Ok(());
        }
        let asked = about.asked.get();
        self.log.audit().record(&AuditEntry {
            server: about.server.map(|server| &**server.name()),
            principal: about.principal.as_ref(),
            client_addr: Some(arrival.peer),
            method: asked.map(|asked| &*asked.method),
            tool: asked.and_then(|asked| asked.tool.as_deref()),
            outcome: Some(Outcome::Refused.as_str()),
            reason: Some(refused.audit_reason()),
            request_id: id.and_then(|id| std::str::from_utf8(id).ok()),
            ..AuditEntry::new(AuditEvent::Refused)
        })
    }
}

/// Gives the answer later: the request was one too many of its address.
async fn paced(response: Response<Body>) -> Response<Body> {
    rarely(|| sleep(PACE)).await;
    response
}

/// Whether a request whose address asks too much can be one of a session that is open, and must be refused within it,
/// or ends one. Whoever made an id up stays outside before anything costs more.
fn may_be_of_session(endpoint: &Endpoint, headers: &HeaderMap) -> bool {
    let id = headers.get(SESSION_ID).and_then(|id| id.to_str().ok());
    id.is_some_and(|id| endpoint.server.registry().has(id, endpoint.server.name()))
}

/// Whether bytes of this request would be left behind by an answer now. A stream of HTTP/2 ends by itself; its connection
/// goes on.
pub(super) fn has_unread_body(request: &Request<Incoming>) -> bool {
    request.version() != Version::HTTP_2 && !request.body().is_end_stream()
}

/// Says that the connection ends with this answer. Where a body was not read, it does: hyper does not wait for what may
/// still come. A client that is not told uses the connection again, and loses that request.
pub(super) fn close(response: &mut Response<Body>) {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

/// Whether an answer to a known caller is given for the head of its request alone.
fn is_before_body(status: StatusCode) -> bool {
    matches!(status, StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_ACCEPTABLE | StatusCode::UNSUPPORTED_MEDIA_TYPE)
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

/// Whether a request shows a token in its query beside what its header holds (RFC 6750 section 2: one of them only). By
/// itself the one in the query is not looked at.
fn shows_two(request: &Request<Incoming>) -> bool {
    let is_token = |part: &str| part.split('=').next() == Some("access_token");
    request.uri().query().is_some_and(|query| query.split('&').any(is_token))
        && request.headers().contains_key(AUTHORIZATION)
}

/// The host a request names, in HTTP/2 by its `:authority` (RFC 9113 section 8.3.1).
fn host(request: &Request<Incoming>) -> Option<&str> {
    let field = request.headers().get(http::header::HOST).map(HeaderValue::to_str);
    field.map_or_else(|| request.uri().authority().map(|authority| authority.as_str()), Result::ok)
}

/// A browser that opens an endpoint's address gets words instead of a protocol error.
fn page(rules: &Rules, endpoint: &Endpoint, request: &Request<Incoming>) -> Option<Response<Body>> {
    if !rules.listen.page || request.method() != Method::GET || !accepted(request.headers()).html {
        return None;
    }
    let base = match &rules.listen.public_url {
        Some(url) => url.to_string(),
        None => format!("{}://{}", rules.listen.scheme(), host(request)?),
    };
    let methods = &endpoint.server.config().auth.methods;
    let logs_in = methods.contains(&config::Method::Oauth);
    let needs_key = methods.contains(&config::Method::ApiKey) && !logs_in;
    let url = format!("{base}{}", endpoint.path);
    Some(Page { name: endpoint.server.name(), url: &url, needs_key, logs_in }.into_response())
}
