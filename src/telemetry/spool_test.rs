use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{CAPACITY, Spool};
use crate::telemetry::capture::{Capture, Scripted};
use crate::telemetry::line::Format;

const LONG: Duration = Duration::from_secs(20);

fn start(mut sink: impl io::Write + Send + 'static) -> (Arc<Spool>, JoinHandle<()>) {
    let spool = Arc::new(Spool::new());
    let written = Arc::clone(&spool);
    (spool, thread::spawn(move || written.write_to(&mut sink, Some(Format::Json))))
}

#[test]
fn lines_come_out_in_order_and_close_ends_the_thread() {
    let sink = Capture::default();
    let (spool, thread) = start(sink.clone());
    for number in 0..1000 {
        spool.push(format!("{number}\n").as_bytes());
    }
    assert!(spool.close(LONG));
    thread.join().expect("the thread ends");
    let expected: String = (0..1000).map(|number| format!("{number}\n")).collect();
    assert_eq!(sink.text(), expected);
    assert_eq!(spool.dropped(), 0);
    spool.push(b"too late\n");
    assert_eq!(spool.dropped(), 1);
}

#[test]
fn a_blocked_sink_costs_lines_and_nobody_waits() {
    let (sink, steps, taken) = Scripted::new();
    let (spool, thread) = start(sink);
    let line = [vec![b'x'; 1023], vec![b'\n']].concat();
    let pushed = 3 * CAPACITY / line.len();
    for _ in 0..pushed {
        spool.push(&line);
    }
    let dropped = spool.dropped() as usize;
    let room = CAPACITY / line.len();
    assert!((pushed - 2 * room..=pushed - room).contains(&dropped), "{dropped} of {pushed}");
    let before = Instant::now();
    assert!(!spool.flush(Duration::from_millis(50)), "nothing was written");
    assert!(before.elapsed() < LONG);
    drop(steps);
    assert!(spool.close(LONG));
    thread.join().expect("the thread ends");
    let text = taken.text();
    let (told, whole): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('{'));
    assert_eq!(whole.len(), pushed - dropped);
    assert_eq!(told.len(), 1);
    assert!(told[0].ends_with(&format!(r#""level":"warn","event":"log_dropped","lines":{dropped}}}"#)), "{}", told[0]);
}

#[test]
fn a_broken_pipe_or_a_full_disk_loses_lines_and_is_tried_again() {
    let (sink, steps, taken) = Scripted::new();
    let (spool, thread) = start(sink);
    // The batch and the line about it both fail, each time.
    for kind in [ErrorKind::BrokenPipe, ErrorKind::StorageFull] {
        steps.send(Err(kind.into())).expect("the sink lives");
    }
    spool.push(b"lost 1\nlost 2\n");
    assert!(spool.flush(LONG));
    assert_eq!((spool.dropped(), taken.text().as_str()), (2, ""));
    drop(steps);
    spool.push(b"kept\n");
    assert!(spool.close(LONG));
    thread.join().expect("the thread ends");
    assert!(taken.text().starts_with("kept\n"), "{}", taken.text());
}

#[test]
fn a_line_torn_by_a_failure_is_ended_before_the_next() {
    let (sink, steps, taken) = Scripted::new();
    let (spool, thread) = start(sink);
    steps.send(Ok(8)).expect("the sink lives");
    steps.send(Err(ErrorKind::StorageFull.into())).expect("the sink lives");
    steps.send(Err(ErrorKind::StorageFull.into())).expect("the sink lives");
    spool.push(b"whole\nsplit\n");
    assert!(spool.flush(LONG));
    assert_eq!((spool.dropped(), taken.text().as_str()), (1, "whole\nsp"));
    drop(steps);
    spool.push(b"next\n");
    assert!(spool.close(LONG));
    thread.join().expect("the thread ends");
    assert!(taken.text().starts_with("whole\nsp\nnext\n"), "{}", taken.text());
}

#[test]
fn interrupted_partial_and_full_writes_lose_nothing() {
    let (sink, steps, taken) = Scripted::new();
    let (spool, thread) = start(sink);
    for step in [Err(ErrorKind::Interrupted.into()), Ok(1), Err(ErrorKind::WouldBlock.into()), Ok(2)] {
        steps.send(step).expect("the sink lives");
    }
    drop(steps);
    spool.push(b"all of it\n");
    assert!(spool.close(LONG));
    thread.join().expect("the thread ends");
    assert_eq!((taken.text().as_str(), spool.dropped()), ("all of it\n", 0));
}

#[test]
fn many_threads_keep_their_lines_whole() {
    let sink = Capture::default();
    let (spool, thread) = start(sink.clone());
    thread::scope(|scope| {
        for writer in 0..4 {
            let spool = &spool;
            scope.spawn(move || (0..500).for_each(|number| spool.push(format!("{writer}-{number}\n").as_bytes())));
        }
    });
    assert!(spool.close(LONG));
    thread.join().expect("the thread ends");
    let text = sink.text();
    for writer in 0..4 {
        let own: Vec<String> =
            text.lines().filter(|line| line.starts_with(&format!("{writer}-"))).map(str::to_owned).collect();
        let expected: Vec<String> = (0..500).map(|number| format!("{writer}-{number}")).collect();
        assert_eq!(own, expected);
    }
}
