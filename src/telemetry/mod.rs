//! Metrics and logs.

pub mod label;
