//! The admin listener: metrics and health. It only tells; nothing here changes anything.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use subtle::ConstantTimeEq;
use tokio::task::spawn_blocking;

use crate::auth::bearer;
use crate::budget::Budget;
use crate::caller::{Arrival, Malformed};
use crate::config;
use crate::http::body::Body;
use crate::http::door::{close, has_unread_body};
use crate::http::guard::Guard;
use crate::http::refusal::Refused;
use crate::server::Readiness;
use crate::telemetry::Metrics;
use crate::telemetry::label::Route;

/// Who may ask what.
struct Rules {
    guard: Guard,
    token: Option<String>,
}

impl Rules {
    fn new(admin: &config::Admin, listen: &config::Listen, limits: &config::Limits) -> Arc<Rules> {
        Arc::new(Rules { guard: Guard::new(listen, limits.header_fields), token: admin.token.clone() })
    }

    fn shows_token(&self, request: &Request<Incoming>) -> bool {
        let Some(token) = &self.token else { return false };
        let shown = bearer::shown(request.headers().get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes));
        shown.is_ok_and(|shown| bool::from(shown.ct_eq(token.as_bytes())))
    }
}

/// The door for operators.
pub struct AdminDoor {
    rules: RwLock<Arc<Rules>>,
    readiness: Arc<Readiness>,
    metrics: Arc<Metrics>,
    budget: Arc<Budget>,
}

impl AdminDoor {
    /// A door with the token of `admin` and the host rules of `listen`.
    #[must_use]
    pub fn new(
        admin: &config::Admin,
        listen: &config::Listen,
        limits: &config::Limits,
        readiness: Arc<Readiness>,
        metrics: Arc<Metrics>,
        budget: Arc<Budget>,
    ) -> Arc<AdminDoor> {
        let rules = RwLock::new(Rules::new(admin, listen, limits));
        Arc::new(AdminDoor { rules, readiness, metrics, budget })
    }

    /// Judges every request that comes from now on by these.
    pub fn set_rules(&self, admin: &config::Admin, listen: &config::Listen, limits: &config::Limits) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Rules::new(admin, listen, limits);
    }

    /// Answers one request; what was none is refused.
    pub async fn handle(
        self: Arc<Self>,
        asked: Result<Request<Incoming>, Malformed>,
        arrival: Arrival,
    ) -> Response<Body> {
        let request = match asked {
            Ok(request) => request,
            Err(malformed) => {
                let response = Refused::Malformed(malformed).into_response(None);
                self.metrics.http_response(Route::Other, response.status().as_u16());
                return response;
            }
        };
        let route = match request.uri().path() {
            "/metrics" => Route::Metrics,
            "/livez" | "/readyz" => Route::Health,
            path if path.starts_with("/servers/") => Route::Health,
            _ => Route::Other,
        };
        let rules = Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner));
        let page = rules.guard.check(&request, arrival.local_bind).and_then(|_admitted| {
            let open = arrival.local_bind || rules.shows_token(&request);
            if open {
                arrival.fate.let_in();
            }
            self.serve(&request, route, open)
        });
        let mut response = match page {
            Ok(Some(response)) => response,
            Ok(None) => self.metrics().await,
            Err(refused) => refused.into_response(None),
        };
        if has_unread_body(&request) {
            close(&mut response);
        }
        self.metrics.http_response(route, response.status().as_u16());
        response
    }

    /// `None` means the metrics, which have to be made first. `open` says that the caller may see everything.
    fn serve(&self, request: &Request<Incoming>, route: Route, open: bool) -> Result<Option<Response<Body>>, Refused> {
        let path = request.uri().path();
        let asks_all = request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "verbose"));
        let verbose = asks_all && path == "/readyz";
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(Refused::Method("GET"));
        }
        match route {
            Route::Health if !verbose => {
                match path.strip_prefix("/servers/").and_then(|rest| rest.strip_suffix("/readyz")) {
                    Some(name) => {
                        let state = self.readiness.check_one(name).ok_or(Refused::NotFound)?;
                        Ok(Some(plain_state(state)))
                    }
                    None if path.starts_with("/servers/") => Err(Refused::NotFound),
                    None => Ok(Some(health(&self.readiness, path))),
                }
            }
            _ if !open => Err(Refused::AdminToken),
            Route::Health => {
                let state = self.readiness.check();
                let head = state.map_or_else(|reason| format!("unready: {reason}\n"), |()| "ready\n".to_owned());
                Ok(Some(plain(status_of(state), head + &self.readiness.describe())))
            }
            Route::Metrics => Ok(None),
            _ => Err(Refused::NotFound),
        }
    }

    async fn metrics(&self) -> Response<Body> {
        let metrics = Arc::clone(&self.metrics);
        // Reads many files. If that fails, the figures of before are shown.
        let _measured = spawn_blocking(move || metrics.measure_children(Instant::now())).await;
        self.metrics.memory_used(self.budget.used());
        self.metrics.memory_budget(self.budget.limit());
        self.metrics.overload_state(self.budget.step().number());
        let mut response = plain(StatusCode::OK, self.metrics.gather());
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
        response
    }
}

/// `/livez`: the reactor answers. `/readyz`: requests should be sent here.
pub(super) fn health(readiness: &Readiness, path: &str) -> Response<Body> {
    if path == "/livez" { plain_state(Ok(())) } else { plain_state(readiness.check()) }
}

fn plain_state(state: Result<(), &'static str>) -> Response<Body> {
    plain(status_of(state), state.map_or_else(|reason| format!("{reason}\n"), |()| "ok\n".to_owned()))
}

fn status_of(state: Result<(), &'static str>) -> StatusCode {
    if state.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn plain(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
