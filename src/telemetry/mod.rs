//! Numbers and words for the operator: metrics in [`Metrics`], the log in [`Logs`].
//!
//! Both are passive. Nothing here decides, waits for anyone, or fails a caller: a series that
//! does not fit becomes `_other`, a log line that does not fit is dropped and counted.

mod access;
mod audit;
mod audit_file;
#[cfg(test)]
mod capture;
mod child_processes;
mod escape;
mod families;
pub mod label;
mod layer;
mod line;
mod log;
mod loudness;
mod mask;
mod metrics;
mod occasion;
mod own_secrets;
mod proc_stat;
mod process;
mod series;
mod server_metrics;
mod session_digest;
mod spool;
mod timestamp;
mod tool_metrics;
mod trace_id;

pub use access::{AccessLine, AccessLog, Client, RefusedLine};
pub use audit::{Audit, AuditEntry, AuditEvent, NotAudited};
pub use child_processes::MeasuredChild;
pub use escape::Escaped;
pub use log::{Hush, Logs, Sink};
pub use loudness::Loudness;
pub use mask::{KnownSecrets, child_text, mask_secrets};
pub use metrics::{ConnectionGauge, Metrics};
pub use occasion::Occasion;
pub use own_secrets::OwnSecrets;
pub use server_metrics::{CallEnd, InFlight, PoolWaiter, ServerMetrics, StreamGauge};
pub use session_digest::{SessionDigest, session_digest};
pub use trace_id::TraceId;
