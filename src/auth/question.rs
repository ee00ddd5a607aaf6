//! Questions under way: what many ask at the same time is found out once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

use super::circle::Digest;

/// Every question under way, by the digest of its token.
pub(super) struct Questions<T>(Mutex<HashMap<Digest, Arc<OnceCell<T>>>>);

impl<T> Default for Questions<T> {
    fn default() -> Self {
        Questions(Mutex::default())
    }
}

/// One asker of one question. The first that has its answer, or gives up, ends it for those who come later: an answer is
/// for whoever asked before it was there.
pub(super) struct Question<'a, T> {
    questions: &'a Questions<T>,
    digest: Digest,
    cell: Arc<OnceCell<T>>,
}

impl<'a, T> Question<'a, T> {
    /// Asks with those who are asking already.
    pub(super) fn join(questions: &'a Questions<T>, digest: Digest) -> Question<'a, T> {
        let mut open = questions.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = Arc::clone(open.entry(digest).or_default());
        Question { questions, digest, cell }
    }

    /// The answer. One of those who ask finds it out; if that one leaves, another does.
    pub(super) async fn answer<F: Future<Output = T>>(&self, find_out: impl FnOnce() -> F) -> &T {
        self.cell.get_or_init(find_out).await
    }
}

impl<T> Drop for Question<'_, T> {
    fn drop(&mut self) {
        let mut open = self.questions.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(entry) = open.entry(self.digest)
            && Arc::ptr_eq(entry.get(), &self.cell)
        {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio::task::JoinSet;
    use tokio::time::{sleep, timeout};

    use super::{Question, Questions};

    async fn ask(questions: &Questions<u32>, count: &AtomicU32) -> u32 {
        let question = Question::join(questions, [7; 32]);
        let find_out = || async {
            sleep(Duration::from_millis(100)).await;
            count.fetch_add(1, Ordering::Relaxed)
        };
        *question.answer(find_out).await
    }

    /// F:E03
    #[tokio::test(start_paused = true)]
    async fn what_many_ask_at_once_is_found_out_once() {
        let (questions, count) = (Arc::new(Questions::default()), Arc::new(AtomicU32::new(0)));
        let mut asking = JoinSet::new();
        for _ in 0..500 {
            let (questions, count) = (Arc::clone(&questions), Arc::clone(&count));
            asking.spawn(async move { ask(&questions, &count).await });
        }
        assert!(asking.join_all().await.into_iter().all(|answer| answer == 0));
        assert_eq!(ask(&questions, &count).await, 1, "whoever comes later has an answer of its own");
        assert!(questions.0.lock().expect("no panic").is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_leaves_takes_no_answer_away() {
        let (questions, count) = (Arc::new(Questions::default()), Arc::new(AtomicU32::new(0)));
        let waits = tokio::spawn({
            let (questions, count) = (Arc::clone(&questions), Arc::clone(&count));
            async move {
                sleep(Duration::from_millis(20)).await;
                ask(&questions, &count).await
            }
        });
        assert!(timeout(Duration::from_millis(50), ask(&questions, &count)).await.is_err(), "it leaves");
        assert_eq!(waits.await.expect("no panic"), 0);
    }
}
