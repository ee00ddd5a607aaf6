//! Ways a future rarely takes, on the heap.
//!
//! A future has room for the largest way it can take, whether it takes it or not, and every connection and every request
//! keeps one. `Box::pin(way()).await` in its body does not help: the way is made in the room of whoever boxes it.

use std::pin::Pin;

/// Makes a future on the heap, and nowhere else before.
pub fn rarely<F: Future>(way: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::pin(way())
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::rarely;

    #[test]
    fn who_takes_it_rarely_has_no_room_for_it() {
        async fn large() -> usize {
            let room = [0_u8; 4096];
            ready(()).await;
            room.len()
        }
        let future = async { rarely(large).await + 1 };
        assert!(size_of_val(&future) < 256, "{} bytes", size_of_val(&future));
        assert!(size_of_val(&large()) > 4096);
    }
}
