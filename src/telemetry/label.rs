//! Every value a metric label or a log field may take, as types.

/// A closed set of texts whose values number from zero, so that a series of each fits an array.
pub trait Label: Copy + 'static {
    /// How many values there are.
    const COUNT: usize;
    /// The text in labels and logs.
    fn text(self) -> &'static str;
    /// The value's place in declaration order, below [`Label::COUNT`].
    fn index(self) -> usize;
}

/// Declares an enum whose variants each have one fixed text.
macro_rules! labels {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "each variant is its own text")]
        pub enum $name { $($(#[$vmeta])* $variant),+ }
        impl $name {
            /// Every value, in declaration order.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];
            /// The text in labels and logs.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
            /// The value with this text.
            #[must_use]
            pub fn from_text(text: &str) -> Option<Self> {
                match text { $($text => Some($name::$variant),)+ _ => None }
            }
        }
        impl Label for $name {
            const COUNT: usize = $name::ALL.len();
            fn text(self) -> &'static str {
                self.as_str()
            }
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

labels! {
    /// How a request ended.
    Outcome { Ok = "ok", ToolError = "tool_error", RpcError = "rpc_error", Refused = "refused", Timeout = "timeout", Cancelled = "cancelled", ChildGone = "child_gone", ClientGone = "client_gone" }
}
labels! {
    /// Why something was refused.
    Refusal { Host = "host", Origin = "origin", Headers = "headers", Parse = "parse", TooLarge = "too_large", MediaType = "media_type", Unauthenticated = "unauthenticated", Scope = "scope", Sessions = "sessions", PoolFull = "pool_full", QueueFull = "queue_full", Breaker = "breaker", Memory = "memory", Overload = "overload", Draining = "draining", Audit = "audit" }
}
labels! {
    /// Why a session ended.
    SessionEnd { Delete = "delete", Idle = "idle", Absolute = "absolute", Uninitialized = "uninitialized", Pressure = "pressure", ChildGone = "child_gone", Admin = "admin", Drain = "drain" }
}
labels! {
    /// Why a stream's connection was cut.
    StreamCut { Stall = "stall", Age = "age", Takeover = "takeover", TokenExpired = "token_expired", Drain = "drain" }
}
labels! {
    /// What a resume found.
    Resume { Ok = "ok", Evicted = "evicted", Foreign = "foreign", Malformed = "malformed" }
}
labels! {
    /// What a stream is.
    StreamKind { Post = "post", Get = "get", Sse = "sse" }
}
labels! {
    /// Who sent a message.
    Direction { ToChild = "to_child", ToClient = "to_client" }
}
labels! {
    /// Kinds of notifications.
    Notice { Progress = "progress", Log = "log", ListChanged = "list_changed", ResourceUpdated = "resource_updated", Cancelled = "cancelled", Other = "other" }
}
impl Notice {
    /// What a notification with this method is.
    #[must_use]
    pub fn of(method: &str) -> Notice {
        match method {
            "notifications/progress" => Notice::Progress,
            "notifications/message" => Notice::Log,
            "notifications/resources/updated" => Notice::ResourceUpdated,
            "notifications/cancelled" => Notice::Cancelled,
            _ if method.ends_with("/list_changed") => Notice::ListChanged,
            _ => Notice::Other,
        }
    }
}
labels! {
    /// Why a notification was dropped.
    Dropped { NoStream = "no_stream", NoRequest = "no_request", Invalid = "invalid", SlowReader = "slow_reader" }
}
labels! {
    /// Who answered something nobody awaits.
    Unmatched { Child = "child", Client = "client" }
}
labels! {
    /// What a child is doing.
    ChildState { Starting = "starting", Idle = "idle", Leased = "leased", Stopping = "stopping" }
}
labels! {
    /// How a start ended.
    Start { Ok = "ok", SpawnError = "spawn_error", Exited = "exited", Timeout = "timeout", Protocol = "protocol" }
}
labels! {
    /// Why a child exited.
    ChildExit { Exit = "exit", Signal = "signal", Oom = "oom", Hang = "hang", Protocol = "protocol", Recycled = "recycled", Stopped = "stopped" }
}
labels! {
    /// How far the stop sequence had to go.
    StopStep { Eof = "eof", Term = "term", Kill = "kill" }
}
labels! {
    /// What was wrong with a child's line.
    BadLine { NotJson = "not_json", NotUtf8 = "not_utf8", TooLong = "too_long", TooDeep = "too_deep", Duplicate = "duplicate", NotMessage = "not_message", Torn = "torn" }
}
labels! {
    /// Where a replay event went.
    Eviction { Events = "events", Bytes = "bytes", Age = "age", Streams = "streams", Total = "total" }
}
labels! {
    /// The routes of the listeners.
    Route { Mcp = "mcp", Sse = "sse", Messages = "messages", Health = "health", Metrics = "metrics", Page = "page", WellKnown = "well_known", Other = "other" }
}
labels! {
    /// How a check of credentials ended.
    AuthResult { Ok = "ok", Missing = "missing", Invalid = "invalid", Expired = "expired", Forbidden = "forbidden", Unavailable = "unavailable" }
}
labels! {
    /// What became of a connection.
    Accepted { Ok = "ok", Limit = "limit", AddressLimit = "address_limit", Handshake = "handshake", Flood = "flood" }
}
labels! {
    /// How a message a client posted was answered.
    Answer { Json = "json", Sse = "sse", Accepted = "accepted" }
}
labels! {
    /// Every method of the revisions 2024-11-05 to 2025-11-25; the commonest stand first because
    /// [`Method::from_text`] compares in this order.
    Method {
        ToolsCall = "tools/call",
        ToolsList = "tools/list",
        Initialize = "initialize",
        Initialized = "notifications/initialized",
        Ping = "ping",
        ResourcesRead = "resources/read",
        ResourcesList = "resources/list",
        ResourcesTemplatesList = "resources/templates/list",
        ResourcesSubscribe = "resources/subscribe",
        ResourcesUnsubscribe = "resources/unsubscribe",
        PromptsGet = "prompts/get",
        PromptsList = "prompts/list",
        CompletionComplete = "completion/complete",
        LoggingSetLevel = "logging/setLevel",
        SamplingCreateMessage = "sampling/createMessage",
        ElicitationCreate = "elicitation/create",
        RootsList = "roots/list",
        TasksGet = "tasks/get",
        TasksResult = "tasks/result",
        TasksList = "tasks/list",
        TasksCancel = "tasks/cancel",
        Progress = "notifications/progress",
        Cancelled = "notifications/cancelled",
        Message = "notifications/message",
        ResourcesUpdated = "notifications/resources/updated",
        ResourcesListChanged = "notifications/resources/list_changed",
        ToolsListChanged = "notifications/tools/list_changed",
        PromptsListChanged = "notifications/prompts/list_changed",
        RootsListChanged = "notifications/roots/list_changed",
        TasksStatus = "notifications/tasks/status",
        ElicitationComplete = "notifications/elicitation/complete",
        Other = "_other",
    }
}
labels! {
    /// The protocol revision a session was opened with.
    Protocol { V20241105 = "2024-11-05", V20250326 = "2025-03-26", V20250618 = "2025-06-18", V20251125 = "2025-11-25", Other = "_other" }
}
labels! {
    /// What came of fetching an issuer's keys.
    Refresh { Ok = "ok", Timeout = "timeout", Unreachable = "unreachable", Refused = "refused", TooLarge = "too_large", Malformed = "malformed", OtherIssuer = "other_issuer" }
}
labels! {
    /// How a caller tried to prove who it is.
    AuthMethod { ApiKey = "api_key", Mtls = "mtls", Jwt = "jwt", Introspection = "introspection" }
}
