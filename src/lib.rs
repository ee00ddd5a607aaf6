//! Gangway puts local MCP **stdio** servers on the network as **Streamable HTTP** endpoints.

pub mod caller;
pub mod config;
pub mod http;
pub mod net;
pub mod telemetry;
