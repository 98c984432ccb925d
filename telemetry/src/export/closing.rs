//! The end of exporting: one deadline that all deliveries see.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Open until [`Closing::begin`]. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct Closing {
    deadline: watch::Sender<Option<Instant>>,
}

impl Closing {
    pub(crate) fn new() -> Closing {
        Closing { deadline: watch::Sender::new(None) }
    }

    /// From now on nothing is retried, and nothing goes on beyond the deadline.
    pub(crate) fn begin(&self, within: Duration) {
        self.deadline.send_replace(Some(Instant::now() + within));
    }

    pub(super) fn begun(&self) -> bool {
        self.deadline.borrow().is_some()
    }

    /// Returns once the end has begun.
    pub(super) async fn beginning(&self) {
        let mut deadline = self.deadline.subscribe();
        // The sender lives in self, so the channel is open.
        let _ = deadline.wait_for(Option::is_some).await;
    }

    /// Returns once the deadline has passed.
    pub(super) async fn passed(&self) {
        let mut deadline = self.deadline.subscribe();
        let at = match deadline.wait_for(Option::is_some).await {
            Ok(deadline) => *deadline,
            Err(_) => None,
        };
        match at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}
