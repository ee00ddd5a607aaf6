//! Gangway puts local MCP **stdio** servers on the network as **Streamable HTTP** endpoints.

pub mod caller;
pub mod cli;
pub mod config;
pub mod telemetry;
