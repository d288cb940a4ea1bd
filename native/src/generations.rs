// SPDX-License-Identifier: Apache-2.0

//! A map of bounded size, for entries that are read far more often than written.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::mem;

/// A map that drops entries nobody has used lately, one generation at a time.
///
/// Writing or getting an entry moves it into the younger generation. When that is full, it becomes the older one,
/// and the former older one is dropped. So the map never holds more than `limit` entries, and one that is used once
/// in each generation stays.
pub struct Generations<K, V, S> {
    recent: HashMap<K, V, S>,
    older: HashMap<K, V, S>,
    half: usize,
}

impl<K: Hash + Eq, V, S: BuildHasher + Default> Generations<K, V, S> {
    pub fn new(limit: usize) -> Self {
        Generations { recent: HashMap::default(), older: HashMap::default(), half: (limit / 2).max(1) }
    }

    pub fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if !self.older.is_empty() {
            if let Some((key, value)) = self.older.remove_entry(key) {
                self.insert(key, value);
            }
        }
        self.recent.get_mut(key)
    }

    pub fn insert(&mut self, key: K, value: V) {
        self.older.remove(&key);
        if self.recent.len() >= self.half && !self.recent.contains_key(&key) {
            self.older = mem::take(&mut self.recent);
        }
        self.recent.insert(key, value);
    }

    pub fn clear(&mut self) {
        self.recent.clear();
        self.older.clear();
    }
}
