//! `[telemetry]`.

use super::child::without_nul;
use super::convert::Refused;
use super::meaning::{Access, Audit, LogFormat, LogLevel, Metrics, Telemetry};
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
    let audit = audit(&mut log);
    drop(log);
    let mut metrics = section.table("metrics");
    let metrics = Metrics {
        tools: metrics.boolean("tools", true),
        max_tools: metrics.limit("max_tools", 50).unwrap_or(usize::MAX),
    };
    Telemetry { level, format, access, audit, metrics }
}

/// Reads `audit` and `audit_required`.
fn audit(log: &mut Section<'_>) -> Option<Audit> {
    let base = log.report.base;
    let path = log.parsed("audit", "", |path| without_nul(path).map(|path| base.join(path)));
    let required = log.boolean("audit_required", false);
    if path.is_none() && required {
        let refused = Refused::new("asks for an audit log, but `audit` names no file", "write audit = \"audit.log\"");
        log.refuse("audit_required", log.place("audit_required").as_ref(), refused);
    }
    path.map(|path| Audit { path, required })
}
