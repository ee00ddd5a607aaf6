//! One configured server: its policy, what it offers, and opening sessions with it.

mod breaker;
mod diagnosis;
mod open;
mod plan;
mod readiness;
mod roster;
mod servers;
mod shared_children;
mod signs;
mod status;
mod tool_rules;

pub use diagnosis::Diagnosis;
pub use open::{Opening, Server, ServerParts, Unopened};
pub use plan::Plan;
pub use readiness::{Prerequisite, Readiness};
pub use roster::Roster;
pub use servers::{Servers, ServersParts, Settings};
pub use status::{Health, Status};

pub use crate::upstream::scout::{Catalogue, ScoutFailure};
pub use crate::upstream::{Lacks, Room, SpawnFailure, adopt_orphans, make_process_undumpable, raise_descriptor_limit};
