use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Audit, AuditEntry, AuditEvent, NotAudited};
use crate::caller::{Peer, Principal};
use crate::config;
use crate::telemetry::session_digest;

const LONG: Duration = Duration::from_secs(30);

/// A file that goes with its owner.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("gangway-audit-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Place(std::env::temp_dir().join(name))
    }

    fn entries(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.0).expect("the file");
        text.lines().map(|line| line.parse().unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

fn open(path: &Path, required: bool) -> Audit {
    Audit::open(Some(&config::Audit { path: path.to_owned(), required })).expect("the file opens")
}

fn numbers(entries: &[Value]) -> Vec<u64> {
    entries.iter().map(|entry| entry["seq"].as_u64().expect("a number")).collect()
}

#[test]
fn an_entry_has_its_fields_in_their_order() {
    let place = Place::new();
    let audit = open(&place.0, true);
    audit.begin(&Arc::from("n1")).expect("it is written");
    let principal = Principal::Key("alice \"\u{1b}[2J".into());
    let entry = AuditEntry {
        server: Some("files"),
        principal: Some(&principal),
        client_addr: Some(Peer::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST))),
        method: Some("tools/call"),
        tool: Some("read\n{\"seq\":9}"),
        outcome: Some("ok"),
        reason: Some("why"),
        session: Some(session_digest("abc")),
        request_id: Some("\"r1\""),
        ..AuditEntry::new(AuditEvent::Call)
    };
    audit.record(&entry).expect("it is written");
    let text = fs::read_to_string(&place.0).expect("the file");
    let line = text.lines().nth(1).expect("a second line");
    let (head, tail) = line.split_once("\"ts\":\"").expect("a time");
    assert_eq!(head, "{\"seq\":2,");
    let (_, tail) = tail.split_once('"').expect("its end");
    assert_eq!(
        tail,
        r#","node":"n1","event":"call","server":"files","principal":"key:alice \"\u001b[2J","client_addr":"127.0.0.1","method":"tools/call","tool":"read\n{\"seq\":9}","outcome":"ok","reason":"why","session":"ba7816bf","request_id":"r1"}"#
    );
    audit.end(LONG);
    let entries = place.entries();
    assert_eq!(numbers(&entries), [1, 2, 3]);
    assert_eq!((&entries[0]["event"], &entries[2]["event"]), (&json!("start"), &json!("stop")));
    assert!(entries[2].get("server").is_none(), "what is not known is left out");
}

#[test]
fn numbers_stand_in_their_order_whoever_writes() {
    for required in [true, false] {
        let place = Place::new();
        let audit = open(&place.0, required);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    (0..200).for_each(|_| audit.record(&AuditEntry::new(AuditEvent::Call)).expect("written"))
                });
            }
        });
        audit.end(LONG);
        assert_eq!(numbers(&place.entries()), (1..=1600).collect::<Vec<u64>>(), "{required}");
        assert_eq!(audit.dropped(), 0);
    }
}

#[test]
fn a_required_entry_is_in_the_file_when_it_is_recorded() {
    let place = Place::new();
    let audit = open(&place.0, true);
    for count in 1..50 {
        audit.record(&AuditEntry::new(AuditEvent::Refused)).expect("written");
        assert_eq!(place.entries().len(), count);
    }
}

#[test]
fn a_required_log_that_fails_refuses_and_recovers_and_another_counts() {
    let required = open(Path::new("/dev/full"), true);
    assert!(!required.refuses(), "nothing has failed yet");
    assert_eq!(required.record(&AuditEntry::new(AuditEvent::Call)), Err(NotAudited));
    assert!(required.refuses());
    assert_eq!(required.dropped(), 1);
    assert!(required.begin(&Arc::from("n1")).is_err_and(|error| error.to_string().contains("/dev/full")));
    let other = open(Path::new("/dev/full"), false);
    for _ in 0..3 {
        assert_eq!(other.record(&AuditEntry::new(AuditEvent::Call)), Ok(()));
    }
    other.end(LONG);
    assert_eq!((other.dropped(), other.refuses()), (3, false));
    let none = Audit::default();
    assert_eq!((none.record(&AuditEntry::new(AuditEvent::Call)), none.refuses(), none.dropped()), (Ok(()), false, 0));
}

#[test]
fn a_file_that_was_moved_away_is_made_again_and_numbers_go_on() {
    for required in [true, false] {
        let (place, moved) = (Place::new(), Place::new());
        let audit = open(&place.0, required);
        let record = || audit.record(&AuditEntry::new(AuditEvent::Call)).expect("written");
        record();
        if let Some(spool) = audit.0.as_ref().and_then(|inner| inner.spool.as_ref()) {
            assert!(spool.flush(LONG));
        }
        fs::rename(&place.0, &moved.0).expect("moved");
        audit.reopen();
        record();
        audit.end(LONG);
        assert_eq!((numbers(&moved.entries()), numbers(&place.entries())), (vec![1], vec![2]), "{required}");
    }
}

#[test]
fn one_that_cannot_be_opened_again_stays_open() {
    let folder = Place::new();
    fs::create_dir(&folder.0).expect("a folder");
    let path = folder.0.join("audit");
    let audit = open(&path, true);
    let moved = Place::new();
    fs::rename(&path, &moved.0).expect("moved");
    fs::remove_dir(&folder.0).expect("removed");
    audit.reopen();
    audit.record(&AuditEntry::new(AuditEvent::Call)).expect("written");
    assert_eq!(numbers(&moved.entries()), [1]);
}
