//! The waiting queue: an order over requests that are not running.
//!
//! Under first come, first served the order is that of submission, and a preempted request goes before all
//! others. Under the priority policy it is (priority, arrival, submission), and a preempted request takes
//! the place it had.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Slot;
use crate::config::SchedulingPolicy;

/// A request's place in the order; the smallest is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    priority: i32,
    arrival: Option<Instant>,
    order: i64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct WaitingQueue {
    policy: SchedulingPolicy,
    queue: BTreeMap<Rank, Slot>,
    next_order: i64,
    next_front: i64,
}

impl WaitingQueue {
    pub(super) fn new(policy: SchedulingPolicy) -> WaitingQueue {
        WaitingQueue { policy, queue: BTreeMap::new(), next_order: 0, next_front: -1 }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Who is served next.
    pub(super) fn first(&self) -> Option<Slot> {
        self.queue.first_key_value().map(|(_, slot)| *slot)
    }

    /// Puts a new request in and answers its rank.
    pub(super) fn push(&mut self, slot: Slot, priority: i32, arrival: Instant) -> Rank {
        let order = self.next_order;
        self.next_order += 1;
        let rank = match self.policy {
            SchedulingPolicy::Fcfs => Rank { priority: 0, arrival: None, order },
            SchedulingPolicy::Priority => Rank { priority, arrival: Some(arrival), order },
        };
        self.queue.insert(rank, slot);
        rank
    }

    /// Puts a preempted request back and answers its new rank.
    pub(super) fn push_preempted(&mut self, slot: Slot, rank: Rank) -> Rank {
        let rank = match self.policy {
            SchedulingPolicy::Fcfs => {
                let order = self.next_front;
                self.next_front -= 1;
                Rank { order, ..rank }
            }
            SchedulingPolicy::Priority => rank,
        };
        self.queue.insert(rank, slot);
        rank
    }

    /// Takes a request out.
    pub(super) fn remove(&mut self, rank: Rank) {
        self.queue.remove(&rank).expect("a waiting request is in the queue under its rank");
    }

    /// The requests in the order in which they will be served.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Rank, Slot)> + '_ {
        self.queue.iter().map(|(rank, slot)| (*rank, *slot))
    }
}
