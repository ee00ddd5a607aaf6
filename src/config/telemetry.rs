//! `[telemetry]`.

use super::meaning::{Access, LogFormat, LogLevel, Metrics, Telemetry};
use super::section::Section;

/// Reads `[telemetry]`.
pub(super) fn read(mut section: Section<'_>) -> Telemetry {
    let mut log = section.table("log");
    let level = log.choice(
        "level",
        "info",
        &[
            ("error", LogLevel::Error),
            ("warn", LogLevel::Warn),
            ("info", LogLevel::Info),
            ("debug", LogLevel::Debug),
            ("trace", LogLevel::Trace),
        ],
    );
    let format = log.choice(
        "format",
        "auto",
        &[("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json)],
    );
    let access = log.choice("access", "all", &[("all", Access::All), ("errors", Access::Errors), ("off", Access::Off)]);
    drop(log);
    let mut metrics = section.table("metrics");
    let metrics = Metrics {
        tools: metrics.boolean("tools", true),
        max_tools: metrics.limit("max_tools", 50).unwrap_or(usize::MAX),
    };
    Telemetry { level, format, access, metrics }
}
