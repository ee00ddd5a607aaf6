//! The commands of the `gangway` binary.

pub mod demo_server;
