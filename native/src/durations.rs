// SPDX-License-Identifier: Apache-2.0

//! How long replies took, as `counters.py` counts it.

/// A histogram: how many durations are at most each bound, in seconds, and not at most the one before.
pub struct Durations {
    bounds: Vec<f64>,
    pub numbers: Vec<u64>,
    pub seconds: f64,
}

impl Durations {
    pub fn new(bounds: Vec<f64>) -> Durations {
        let numbers = vec![0; bounds.len() + 1];
        Durations { bounds, numbers, seconds: 0.0 }
    }

    pub fn add(&mut self, seconds: f64, times: u64) {
        self.numbers[self.bounds.partition_point(|bound| *bound < seconds)] += times;
        self.seconds += seconds * times as f64;
    }
}

/// Returns the seconds of the clock that `time.perf_counter` shows.
pub fn now() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
