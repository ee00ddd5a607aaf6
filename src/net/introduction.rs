//! Whom the proxy speaks for that a connection comes from.

use std::net::IpAddr;
use std::time::Duration;

use crate::telemetry::label::Accepted;

use super::cap::{Caps, Place};
use super::observe::End;
use super::proxy_protocol::{Unnamed, read_source};
use super::wire::Stream;

/// Reads the header of the PROXY protocol and counts the place for the client it names; `None` is the proxy itself.
///
/// # Errors
/// A word for the log, and how the connection ends.
pub(super) async fn introduce(
    stream: &mut Stream,
    place: &mut Place,
    caps: &Caps,
    limit: Duration,
) -> Result<Option<IpAddr>, (&'static str, End)> {
    let client = read_source(stream, limit).await.map_err(|unnamed| match unnamed {
        Unnamed::Malformed => ("proxy_header", End::BadHead),
        Unnamed::TooLate => ("proxy_header_timeout", End::HeadTimeout),
        Unnamed::Gone => ("proxy_header_missing", End::Broken),
    })?;
    if let Some(client) = client {
        caps.count_for(place, client).map_err(|why: Accepted| (why.as_str(), End::TooMany))?;
    }
    Ok(client)
}
