//! Gangway puts local MCP **stdio** servers on the network as **Streamable HTTP** endpoints.

pub mod auth;
pub mod budget;
pub mod caller;
pub mod cli;
pub mod config;
pub mod exchange;
pub mod gateway;
pub mod http;
pub mod mcp;
pub mod net;
pub mod paste;
pub mod server;
pub mod telemetry;
pub mod upstream;
