//! The members of messages that the gateway looks for, each where it counts.

/// The object a member stands in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Envelope,
    Params,
    Meta,
    RelatedTask,
    Result,
    Error,
}

/// A member by what it means there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    JsonRpc,
    Id,
    Method,
    Params,
    Result,
    Error,
    Meta,
    Token,
    ProgressOf,
    RequestId,
    Name,
    NameTwin,
    Uri,
    Level,
    ProtocolVersion,
    TaskId,
    Task,
    EnvelopeVersion,
    RelatedTaskObject,
    RelatedTask,
    IsError,
    Code,
    Other,
}

impl Member {
    /// What a member with this name is.
    pub(super) fn of(place: Place, name: &[u8]) -> Member {
        match (place, name) {
            (Place::Envelope, b"jsonrpc") => Member::JsonRpc,
            (Place::Envelope, b"id") => Member::Id,
            (Place::Envelope, b"method") => Member::Method,
            (Place::Envelope, b"params") => Member::Params,
            (Place::Envelope, b"result") => Member::Result,
            (Place::Envelope, b"error") => Member::Error,
            (Place::Params, b"_meta") => Member::Meta,
            (Place::Params, b"progressToken") => Member::ProgressOf,
            (Place::Params, b"requestId") => Member::RequestId,
            (Place::Params, b"name") => Member::Name,
            (Place::Params, b"uri") => Member::Uri,
            (Place::Params, b"level") => Member::Level,
            (Place::Params, b"taskId") => Member::TaskId,
            (Place::Params, b"task") => Member::Task,
            (Place::Params | Place::Result, b"protocolVersion") => Member::ProtocolVersion,
            (Place::Meta, b"progressToken") => Member::Token,
            (Place::Meta, b"io.modelcontextprotocol/protocolVersion") => Member::EnvelopeVersion,
            (Place::Meta, b"io.modelcontextprotocol/related-task") => Member::RelatedTaskObject,
            (Place::RelatedTask, b"taskId") => Member::RelatedTask,
            (Place::Result, b"isError") => Member::IsError,
            (Place::Error, b"code") => Member::Code,
            (Place::Params, name) if name.eq_ignore_ascii_case(b"name") => Member::NameTwin,
            _ => Member::Other,
        }
    }
}
