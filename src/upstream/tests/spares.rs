//! Trials of the pool: what becomes of children nobody uses.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use super::{command, eventually, is_reaped};
use crate::config;
use crate::telemetry::Metrics;
use crate::upstream::Spawner;
use crate::upstream::command::tests::server;
use crate::upstream::pool::Pool;

struct Trial {
    pool: Arc<Pool>,
    spawner: Spawner,
    metrics: Arc<Metrics>,
}

impl Trial {
    /// A pool of children that read until their input ends.
    fn new(pool: config::Pool) -> Trial {
        let spawner = Spawner::start().expect("a thread");
        let metrics = Metrics::new(&config::Metrics { tools: false, max_tools: 0 });
        let config = Arc::new(config::Server { pool, ..server() });
        let pool = Pool::new(spawner.clone(), command("cat", &[]), config, metrics.server("test"));
        Trial { pool, spawner, metrics }
    }

    fn limits() -> config::Pool {
        config::Pool { wait: Duration::from_secs(20), ..server().pool }
    }

    fn shows(&self, series: &str, value: u64) -> bool {
        self.metrics.gather().lines().any(|line| line == format!("gangway_{series} {value}"))
    }

    async fn await_series(&self, series: &str, value: u64) {
        eventually(&format!("{series} {value}"), || self.shows(series, value)).await;
    }

    /// Asks for a child and leaves before it is there.
    fn ask_and_leave(&self) {
        let lease = pin!(self.pool.lease());
        assert!(lease.poll(&mut Context::from_waker(Waker::noop())).is_pending(), "nothing is started that fast");
    }

    async fn close(self) {
        self.pool.close().await;
        assert_eq!(self.spawner.living().wait_for_none(Duration::ZERO), 0);
    }
}

const IDLE: &str = "children{server=\"test\",state=\"idle\"}";
const RECYCLED: &str = "child_exits_total{reason=\"recycled\",server=\"test\"}";
const STOPPED: &str = "child_exits_total{reason=\"stopped\",server=\"test\"}";

/// R:P27: a start is not in vain: who comes next has the child, which nobody wrote to.
#[tokio::test]
async fn a_child_whose_caller_left_is_a_spare() {
    let trial = Trial::new(config::Pool { min_idle: 1, ..Trial::limits() });
    trial.pool.open();
    trial.await_series(IDLE, 1).await;
    let unused = trial.pool.lease().await.expect("a child");
    let pid = unused.pid();
    // The next spare is not there yet.
    trial.ask_and_leave();
    trial.await_series(IDLE, 2).await;
    drop(unused);
    trial.await_series(IDLE, 3).await;
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(trial.pool.lease().await.expect("a child"));
    }
    assert_eq!(leases[2].pid(), pid, "given back as it was, it is a spare once more");
    let mut used = leases.remove(2);
    let pipes = used.take_pipes().expect("untaken");
    drop((pipes, used));
    // Used once, it serves nobody else.
    trial.await_series(STOPPED, 1).await;
    assert!(is_reaped(pid.cast_signed()));
    drop(leases);
    trial.close().await;
}

/// C:B31: who keeps no spares has none from those who left either.
#[tokio::test]
async fn without_spares_nothing_is_kept() {
    let trial = Trial::new(Trial::limits());
    trial.pool.open();
    trial.ask_and_leave();
    trial.await_series(STOPPED, 1).await;
    drop(trial.pool.lease().await.expect("a child"));
    trial.await_series(STOPPED, 2).await;
    assert!(!trial.shows(IDLE, 1) && trial.shows("children{server=\"test\",state=\"leased\"}", 0));
    trial.close().await;
}

/// `pool.idle_timeout`: spares above `min_idle` end, and no other.
#[tokio::test]
async fn idle_spares_end_down_to_the_minimum() {
    let idle_timeout = Some(Duration::from_millis(300));
    let trial = Trial::new(config::Pool { min_idle: 1, idle_timeout, ..Trial::limits() });
    trial.pool.open();
    trial.await_series(IDLE, 1).await;
    let mut used = trial.pool.lease().await.expect("a child");
    let pipes = used.take_pipes().expect("untaken");
    // Nothing but a spare that is being started is there for these.
    for _ in 0..3 {
        trial.ask_and_leave();
    }
    trial.await_series(STOPPED, 3).await;
    assert!(trial.shows(IDLE, 1) && trial.shows("children{server=\"test\",state=\"leased\"}", 1));
    assert!(used.exit().borrow().is_none(), "one in use was stopped");
    // The last one can be spared as soon as there is another.
    let last = trial.pool.lease().await.expect("a child");
    trial.await_series(IDLE, 1).await;
    drop(last);
    trial.await_series(STOPPED, 4).await;
    assert!(trial.shows(IDLE, 1));
    drop((pipes, used));
    trial.close().await;
}

/// `pool.max_lifetime`: a spare too old for a session is replaced, even if nobody asks for one.
#[tokio::test]
async fn old_spares_are_replaced() {
    let max_lifetime = Some(Duration::from_millis(400));
    let trial = Trial::new(config::Pool { min_idle: 2, max_lifetime, ..Trial::limits() });
    trial.pool.open();
    trial.await_series(IDLE, 2).await;
    let mut used = trial.pool.lease().await.expect("a child");
    let pipes = used.take_pipes().expect("untaken");
    eventually("two generations", || {
        let recycled = trial.metrics.gather().lines().find_map(|line| {
            line.strip_prefix(&format!("gangway_{RECYCLED} ")).map(|count| count.parse::<u64>().expect("a count"))
        });
        recycled.is_some_and(|count| count >= 4)
    })
    .await;
    assert!(used.exit().borrow().is_none(), "one in use was stopped");
    trial.await_series(IDLE, 2).await;
    drop((pipes, used));
    trial.close().await;
}

/// After a drain nobody's child comes back.
#[tokio::test]
async fn a_closed_pool_takes_no_child_back() {
    let trial = Trial::new(config::Pool { min_idle: 1, max_size: Some(1), ..Trial::limits() });
    trial.pool.open();
    let unused = trial.pool.lease().await.expect("a child");
    trial.pool.refuse();
    let pid = unused.pid();
    drop(unused);
    trial.await_series(STOPPED, 1).await;
    assert!(is_reaped(pid.cast_signed()));
    trial.close().await;
}
