//! What it costs to check who calls, and to refuse: `cargo bench --bench door`.
//!
//! One gateway serves the demo server to callers with an API key and to callers with an access token (ES256, keys
//! fetched from an issuer in this process), over plain TCP and over TLS 1.3. Measured in interleaved rounds of one run:
//! processor time of a call with a token against one with a key; calls a second over TLS against plain ones; how long a
//! refusal takes; what a flood of requests nobody may make does to another address. The clients run on the same
//! processors as the gateway.
//!
//! It judges nothing: the project's targets stand beside the numbers, and the exit status is 0.

#[cfg(target_os = "linux")]
#[path = "../bridge/answer.rs"]
#[allow(dead_code, reason = "shared with the bridge bench")]
mod answer;
#[cfg(target_os = "linux")]
mod caller;
#[cfg(target_os = "linux")]
#[path = "../bridge/cpu.rs"]
mod cpu;
#[cfg(target_os = "linux")]
#[path = "../bridge/gateway.rs"]
#[allow(dead_code, reason = "shared with the bridge bench")]
mod gateway;
#[cfg(target_os = "linux")]
#[path = "../bridge/http.rs"]
mod http;
#[cfg(target_os = "linux")]
mod issuer;
#[cfg(target_os = "linux")]
#[path = "../bridge/lane.rs"]
#[allow(dead_code, reason = "shared with the bridge bench")]
mod lane;
#[cfg(target_os = "linux")]
mod measure;
#[cfg(target_os = "linux")]
#[path = "../bridge/process.rs"]
#[allow(dead_code, reason = "shared with the bridge bench")]
mod process;
#[cfg(target_os = "linux")]
#[path = "../bridge/request.rs"]
#[allow(dead_code, reason = "shared with the bridge bench")]
mod request;

/// The binary under measurement.
const GANGWAY: &str = env!("CARGO_BIN_EXE_gangway");

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    measure::run()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("door: {GANGWAY} can be measured on Linux only");
}
