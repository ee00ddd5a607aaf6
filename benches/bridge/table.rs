//! Medians over the rounds, beside the project's targets.

use crate::bridge::Measured;

/// What a ratio should be.
#[derive(Clone, Copy)]
pub enum Target {
    /// Rate at least this part of hyper's.
    Rate(f64),
    /// Rate at least this part of the pipe's.
    PipeRate(f64),
    /// Rate at least this part of the slower of pipe and hyper.
    SlowerRate(f64),
    /// Median latency at most so many times that of hyper and pipe together.
    Latency(f64),
    /// Processor time of one call at most so many times hyper's.
    Cpu(f64),
}

/// The rounds of one scenario.
pub struct Trial {
    name: &'static str,
    targets: &'static [Target],
    rounds: Vec<Round>,
}

struct Round {
    hyper: Option<Measured>,
    pipe: Measured,
    ours: Measured,
}

impl Trial {
    /// No rounds yet.
    pub fn new(name: &'static str, targets: &'static [Target]) -> Trial {
        Trial { name, targets, rounds: Vec::new() }
    }

    /// Adds a round.
    pub fn add(&mut self, hyper: Option<Measured>, pipe: Measured, ours: Measured) {
        self.rounds.push(Round { hyper, pipe, ours });
    }

    /// Prints the medians of what was measured and of the ratios.
    pub fn print(&self) {
        if self.rounds.is_empty() {
            return;
        }
        println!("\n{:<16}{:>12}{:>12}{:>12}", self.name, "hyper", "pipe", "gateway");
        let row = |name: &str, of: fn(&Measured) -> f64| {
            let hyper = self.over(|round| round.hyper.as_ref().map(of));
            let pipe = self.over(|round| Some(of(&round.pipe)));
            let ours = self.over(|round| Some(of(&round.ours)));
            println!("  {name:<14}{}{}{}", cell(hyper), cell(pipe), cell(ours));
        };
        row("calls/s", |measured| measured.rate);
        row("p50 µs", |measured| measured.p50);
        row("CPU µs/call", |measured| measured.cpu);
        for target in self.targets {
            self.judge(*target);
        }
    }

    fn judge(&self, target: Target) {
        let (name, limit, value) = match target {
            Target::Rate(limit) => {
                ("rate / hyper", limit, self.over(|round| Some(round.ours.rate / round.hyper.as_ref()?.rate)))
            }
            Target::PipeRate(limit) => {
                ("rate / pipe", limit, self.over(|round| Some(round.ours.rate / round.pipe.rate)))
            }
            Target::SlowerRate(limit) => (
                "rate / the slower of pipe and hyper",
                limit,
                self.over(|round| Some(round.ours.rate / round.hyper.as_ref()?.rate.min(round.pipe.rate))),
            ),
            Target::Latency(limit) => (
                "p50 / (hyper + pipe)",
                limit,
                self.over(|round| Some(round.ours.p50 / (round.hyper.as_ref()?.p50 + round.pipe.p50))),
            ),
            Target::Cpu(limit) => {
                ("CPU / hyper", limit, self.over(|round| Some(round.ours.cpu / round.hyper.as_ref()?.cpu)))
            }
        };
        let Some(value) = value else { return };
        let (sign, met) = match target {
            Target::Rate(_) | Target::PipeRate(_) | Target::SlowerRate(_) => ("≥", value >= limit),
            Target::Latency(_) | Target::Cpu(_) => ("≤", value <= limit),
        };
        let verdict = if met { "met" } else { "missed" };
        println!("  {name:<38}{value:>12.2}   target {sign} {limit:.2}   {verdict}");
    }

    fn over(&self, of: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.rounds.iter().filter_map(of).collect();
        if values.is_empty() { None } else { Some(median(&values)) }
    }
}

fn cell(value: Option<f64>) -> String {
    match value {
        Some(value) if value > 0.0 => format!("{value:>12.1}"),
        _ => format!("{:>12}", "–"),
    }
}

/// The middle value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
