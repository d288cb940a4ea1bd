// SPDX-License-Identifier: Apache-2.0

//! A queue that is fair to clients: however much one of them sends, the turns of the others come.

use std::collections::VecDeque;

/// Clients that share a lane by chance wait for each other.
const LANES: usize = 1024;

/// Items that keep their order whoever they are of, in a lane of their own: so few delay nobody. A sender may name
/// several clients, and expects replies in the order of its queries while few wait.
const IN_ORDER: usize = 64;

/// Items that a lane keeps room for while it is empty.
const KEPT: usize = 64;

/// A queue with lanes that take turns, as in fair queueing (RFC 8290). Each client always has the same lane.
pub struct FairQueue<T> {
    lanes: Vec<VecDeque<T>>,
    /// The lanes with items, first the one whose turn it is.
    turns: VecDeque<usize>,
    len: usize,
}

impl<T> FairQueue<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an item of a client, by a number that nobody can choose. Beyond `most` items, returns one that must go: the
    /// oldest of a lane that is longer than most.
    pub fn push(&mut self, client: u64, item: T, most: usize) -> Option<T> {
        let own = if self.len < IN_ORDER { LANES } else { client as usize % LANES };
        if self.lanes[own].is_empty() {
            self.turns.push_back(own);
        }
        self.lanes[own].push_back(item);
        self.len += 1;
        if self.len <= most {
            return None;
        }
        let is_longer = self.lanes[own].len() * self.turns.len() > self.len;
        let longest = || *self.turns.iter().max_by_key(|&&lane| self.lanes[lane].len()).expect("it is not empty");
        let lane = if is_longer { own } else { longest() };
        let oldest = self.remove_from(lane);
        if self.lanes[lane].is_empty() {
            self.turns.retain(|&other| other != lane);
        }
        oldest
    }

    /// Takes the oldest item of the lane whose turn it is.
    pub fn pop(&mut self) -> Option<T> {
        let lane = self.turns.pop_front()?;
        let item = self.remove_from(lane);
        if !self.lanes[lane].is_empty() {
            self.turns.push_back(lane);
        }
        item
    }

    fn remove_from(&mut self, lane: usize) -> Option<T> {
        let items = &mut self.lanes[lane];
        let item = items.pop_front();
        if items.is_empty() && items.capacity() > KEPT {
            *items = VecDeque::new();
        }
        self.len -= 1;
        item
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> FairQueue<T> {
        FairQueue { lanes: (0..=LANES).map(|_| VecDeque::new()).collect(), turns: VecDeque::new(), len: 0 }
    }
}
