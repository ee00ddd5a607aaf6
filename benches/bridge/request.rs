//! What is asked, the same over pipes and over HTTP.

/// The first request of a session.
pub const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
    r#""capabilities":{},"clientInfo":{"name":"bridge","version":"1"}}}"#
);

/// What follows it.
pub const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// A small call.
pub const ECHO: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","#,
    r#""arguments":{"text":"The quick brown fox jumps over the lazy dog."}}}"#
);

/// A call with 1,000 notifications before its answer.
pub const BURST: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":"p"},"#,
    r#""name":"progress_burst","arguments":{"count":1000}}}"#
);
