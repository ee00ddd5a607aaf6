//! Children: starting them, their pipes, their end.
//!
//! A [`Command`] goes to the [`Spawner`], whose one thread does every fork, and comes back as a
//! [`Child`]. From then on one task owns the process: it alone signals and reaps it, so that no
//! signal can reach a stranger who got the same process id. Where that task cannot go on (its
//! child was dropped, its runtime ended) the process falls to the spawner's thread, which kills
//! and reaps it. [`LineSplitter`] turns what a child writes into bounded lines.

mod backlog;
mod child;
mod command;
pub mod conversation;
mod exit;
mod fork;
#[cfg_attr(not(target_os = "linux"), path = "landlock_absent.rs")]
mod landlock;
mod last_words;
#[cfg_attr(not(target_os = "linux"), path = "launch_by_fork.rs")]
mod launch;
pub mod lease;
pub mod lifespan;
mod line;
mod living;
mod oom_kills;
pub mod outbound;
mod own_process;
pub mod participant;
pub mod pool;
mod process;
mod reading;
pub mod scout;
mod spawn_error;
mod spawner;
mod stderr;
#[cfg(test)]
mod tests;
mod token_bucket;
mod wide_pipe;

pub use child::{Child, StopReport};
pub use command::{Command, StderrCount, environment};
pub use exit::{Ending, Exit};
pub use line::{Line, LineSplitter};
pub use living::Living;
pub use own_process::{DescriptorLimit, make_process_undumpable, raise_descriptor_limit};
pub use spawn_error::{SpawnError, SpawnFailure};
pub use spawner::Spawner;
pub use stderr::LastLines;
