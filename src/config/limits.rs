//! `[limits]`, `[sessions]`, `[streams]`, `[replay]` and `[drain]`.

use super::convert::{Refused, bytes};
use super::document::Value;
use super::meaning::{Drain, Limits, Replay, Sessions, Streams};
use super::memory;
use super::section::Section;

/// Reads `[limits]`.
pub(super) fn read(mut section: Section<'_>) -> Limits {
    let memory = section.value("memory", &Value::plain("auto"), |value| match value {
        Value::Text(text) if text.meaning == "auto" => Ok(None),
        other => bytes(other, 1 << 20).map(Some),
    });
    let limits = Limits {
        memory: memory.unwrap_or_else(memory::automatic),
        connections: section.limit("connections", 10_000),
        connections_per_address: section.limit("connections_per_address", 256),
        requests_in_flight: section.limit("requests_in_flight", 4096),
        requests_in_flight_per_principal: section.limit("requests_in_flight_per_principal", 64),
        header_bytes: section.size("header_bytes", "32KiB", 8 << 10),
        header_fields: section.count("header_fields", 64, 8) as usize,
        header_timeout: section.time_above_zero("header_timeout", "10s"),
        body_bytes: section.size("body_bytes", "8MiB", 1 << 10),
        body_idle: section.time_above_zero("body_idle", "15s"),
        write_stall: section.time_above_zero("write_stall", "20s"),
        keep_alive: section.time_above_zero("keep_alive", "75s"),
        connection_age: section.time_or_off("connection_age", "off"),
        tls_handshake: section.time_above_zero("tls_handshake", "10s"),
    };
    if memory.is_some_and(|memory| memory < limits.body_bytes as u64) {
        let refused = Refused::new("is less than one body (`limits.body_bytes`)", "raise it, or lower the other");
        section.refuse("memory", section.place("memory").as_ref(), refused);
    }
    limits
}

/// Reads `[sessions]`.
pub(super) fn read_sessions(mut section: Section<'_>) -> Sessions {
    Sessions {
        max: section.limit("max", 10_000),
        max_per_principal: section.limit("max_per_principal", 32),
        idle: section.time_or_off("idle", "30m"),
        absolute: section.time_or_off("absolute", "off"),
        uninitialized: section.time_above_zero("uninitialized", "30s"),
        evict_after: section.time("evict_after", "2m"),
    }
}

/// Reads `[streams]`.
pub(super) fn read_streams(mut section: Section<'_>) -> Streams {
    Streams {
        sse_after: section.time("sse_after", "1s"),
        comment_every: section.time_above_zero("comment_every", "15s"),
        retry: section.time("retry", "1s"),
        max_age: section.time_or_off("max_age", "off"),
    }
}

/// Reads `[replay]`.
pub(super) fn read_replay(mut section: Section<'_>) -> Replay {
    let replay = Replay {
        events: section.limit("events", 1024).unwrap_or(usize::MAX),
        bytes: section.size("bytes", "4MiB", 1 << 10),
        age: section.time("age", "5m"),
        total: section.size("total", "64MiB", 1 << 10),
    };
    if replay.bytes > replay.total {
        let refused =
            Refused::new("is more than `replay.total`, which holds every stream", "lower it, or raise the other");
        let key = "bytes";
        section.refuse(key, section.place(key).as_ref(), refused);
    }
    replay
}

/// Reads `[drain]`.
pub(super) fn read_drain(mut section: Section<'_>) -> Drain {
    Drain {
        prestop: section.time("prestop", "5s"),
        calls: section.time("calls", "15s"),
        children: section.time("children", "5s"),
    }
}
