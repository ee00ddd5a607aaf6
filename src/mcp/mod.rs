//! The protocol, pure: no I/O, no clock, no runtime.

pub mod beginning;
pub mod call_map;
mod envelope;
pub mod ids;
pub mod members;
pub mod message;
pub mod payload;
mod plain_run;
pub mod receipt;
pub mod revision;
pub mod scan;
pub mod segments;
pub mod stream_log;
pub mod tool_list;
