//! How fast sessions open, and how fast a child shakes hands by itself.

use std::io;
use std::time::Instant;

use crate::gateway::Gateway;
use crate::native::Native;
use crate::table::median;

/// Sessions opened in one round, all of them open together.
const SESSIONS: usize = 200;

/// What the rounds gave: times in microseconds, rates in sessions a second.
#[derive(Default)]
pub struct Trial {
    alone: Vec<f64>,
    opened: Vec<f64>,
    rate_alone: Vec<f64>,
    rate: Vec<f64>,
}

impl Trial {
    /// Opens them through the gateway, and as many children directly.
    pub fn round(&mut self, gateway: &Gateway) -> io::Result<()> {
        let stream = gateway.connect()?;
        let (ids, times, rate) = each(|| gateway.initialize(&stream))?;
        self.opened.push(times);
        self.rate.push(rate);
        for id in ids {
            gateway.close(&stream, &id)?;
        }
        gateway.await_idle()?;
        let (_children, times, rate) = each(Native::start)?;
        self.alone.push(times);
        self.rate_alone.push(rate);
        Ok(())
    }

    /// Prints the medians.
    pub fn print(&self) {
        if self.rate.is_empty() {
            return;
        }
        println!("\nopening {SESSIONS} sessions, one after the other");
        println!("  a child alone    {:>8.0}/s   p50 {:>6.0} µs", median(&self.rate_alone), median(&self.alone));
        println!("  through gateway  {:>8.0}/s   p50 {:>6.0} µs", median(&self.rate), median(&self.opened));
    }
}

/// Opens all of them; gives them, the median time of one and their rate.
fn each<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<(Vec<T>, f64, f64)> {
    let (mut opened, mut times) = (Vec::new(), Vec::new());
    let began = Instant::now();
    for _ in 0..SESSIONS {
        let start = Instant::now();
        opened.push(open()?);
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok((opened, median(&times), SESSIONS as f64 / began.elapsed().as_secs_f64()))
}
