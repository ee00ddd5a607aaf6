//! What the operator typed, and what it means.

mod meaning;

pub use meaning::{
    Access, Address, Admin, Auth, Breaker, Config, Drain, Key, Limits, Listen, LogFormat, LogLevel,
    Method, Metrics, Mode, Network, Pool, PublicUrl, Queue, Replay, Required, Server, ServerAuth, Sessions, Streams,
    Telemetry, Timeouts,
};
