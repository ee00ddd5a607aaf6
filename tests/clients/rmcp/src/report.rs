//! The outcome of the steps, as the driver reads it.

use std::error::Error;
use std::time::Duration;

use tokio::time::timeout;

const STEP_LIMIT: Duration = Duration::from_secs(30);

/// Why a step failed, for people to read.
pub type Failure = Box<dyn Error>;

/// Prints the outcome of each step and counts the failures.
#[derive(Default)]
pub struct Report {
    /// How many steps failed so far.
    pub failed: usize,
}

impl Report {
    /// Awaits a step and gives its value, if it passed within the limit.
    pub async fn step<T>(
        &mut self,
        name: &str,
        step: impl Future<Output = Result<T, Failure>>,
    ) -> Option<T> {
        let outcome = timeout(STEP_LIMIT, step)
            .await
            .unwrap_or_else(|_| Err("not done in time".into()));
        match outcome {
            Ok(value) => {
                println!("ok {name}");
                Some(value)
            }
            Err(error) => {
                self.failed += 1;
                let why: Vec<_> = error
                    .to_string()
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect();
                println!(
                    "FAIL {name}: {}",
                    why.join(" ").chars().take(300).collect::<String>()
                );
                None
            }
        }
    }
}
