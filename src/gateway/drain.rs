//! The end of a gateway, in order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::info;

use crate::config;
use crate::gateway::{Drained, Stop};
use crate::server::Servers;

/// How often a drain looks whether the last call has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Unready first, so that load balancers look elsewhere; then no new work; then the end of what
/// is running, by itself or cut.
pub(super) async fn drain(servers: &Arc<Servers>, config: &config::Drain, stop: &mut watch::Receiver<Stop>) -> Drained {
    servers.readiness().drain();
    let prestop = if *stop.borrow() == Stop::DrainNow { Duration::ZERO } else { config.prestop };
    info!(
        event = "drain_start",
        sessions = servers.sessions(),
        calls = servers.calls_in_flight(),
        prestop_ms = prestop.as_millis()
    );
    tokio::select! {
        () = sleep(prestop) => {}
        _ = stop.wait_for(|stop| *stop == Stop::DrainNow) => {}
    }
    servers.drain();
    let deadline = Instant::now() + config.calls;
    while servers.calls_in_flight() > 0 && Instant::now() < deadline {
        sleep(LOOK).await;
    }
    let calls_cut = servers.calls_in_flight();
    servers.end_sessions();
    // Children that outlive this are killed with their groups when the runtime drops their owners.
    let _killed = timeout(config.children, servers.close()).await;
    Drained { calls_cut }
}
