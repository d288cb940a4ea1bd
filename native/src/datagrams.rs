// SPDX-License-Identifier: Apache-2.0

//! One socket: a thread receives its datagrams and repeats answers; Python takes the datagrams that it must answer.

use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::address::Address;
use crate::answer_table::AnswerTable;
use crate::durations::{now, Durations};
use crate::fair_queue::FairQueue;
use crate::socket::{Batch, Path, Socket};

/// Datagrams that wait for Python, some megabytes. More are dropped, as a full socket buffer drops them: what is known
/// already is answered even so.
const MAX_WAITING: usize = 16_384;

/// Seconds for which a datagram waits for Python. Then its client asks again, or has given up.
const MAX_WAIT: f64 = 2.0;

/// Datagrams that are answered after the end, about as many as the socket's buffer holds. Those that still come must not
/// hold up the end.
const LAST: usize = 4_096;

/// A datagram that Python must answer, and when it was received.
pub struct Unanswered {
    pub query: Box<[u8]>,
    pub path: Path,
    pub received: f64,
}

/// The datagrams that Python must answer: those that wait, and those that it has taken and works on.
struct Waiting {
    queue: FairQueue<Unanswered>,
    taken: Arc<[Unanswered]>,
}

/// What the thread and Python share of one socket.
pub struct Shared {
    pub socket: Socket,
    table: Arc<Mutex<AnswerTable>>,
    durations: Arc<Mutex<Durations>>,
    waiting: Mutex<Waiting>,
    /// Readable while datagrams wait for Python.
    pub event: i32,
    ending: AtomicBool,
    pub lost: AtomicU64,
    pub failed: AtomicU64,
    pub panicked: AtomicU64,
    pub dropped: AtomicU64,
}

impl Shared {
    pub fn new(
        socket: Socket,
        table: Arc<Mutex<AnswerTable>>,
        durations: Arc<Mutex<Durations>>,
    ) -> io::Result<Arc<Shared>> {
        let event = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Arc::new(Shared {
            socket,
            table,
            durations,
            waiting: Mutex::new(Waiting { queue: FairQueue::default(), taken: Arc::new([]) }),
            event,
            ending: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }))
    }

    pub fn start(self: &Arc<Shared>) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(self);
        thread::Builder::new().name("topodns-udp".into()).stack_size(256 << 10).spawn(move || {
            block_signals();
            prefer_short_slices();
            // A panic costs one batch, not the socket.
            while catch_unwind(AssertUnwindSafe(|| shared.run())).is_err() {
                shared.panicked.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    /// Makes the thread end as soon as it has answered what is in the socket's buffer.
    pub fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        // On Linux this wakes the reader of a UDP socket, although it is not connected.
        unsafe { libc::shutdown(self.socket.fd, libc::SHUT_RD) };
    }

    /// Returns datagrams that Python must answer, at most `limit`: some of each client that has some, its oldest first.
    /// Those taken before are finished.
    pub fn take(&self, limit: usize) -> Arc<[Unanswered]> {
        let mut waiting = lock(&self.waiting);
        let oldest = now() - MAX_WAIT;
        let mut taken = Vec::with_capacity(limit.min(waiting.queue.len()));
        while taken.len() < limit {
            match waiting.queue.pop() {
                Some(datagram) if datagram.received >= oldest => taken.push(datagram),
                Some(_) => drop(self.dropped.fetch_add(1, Ordering::Relaxed)),
                None => break,
            }
        }
        waiting.taken = taken.into();
        if waiting.queue.is_empty() {
            let mut wakes = [0_u8; 8];
            unsafe { libc::read(self.event, wakes.as_mut_ptr().cast(), wakes.len()) };
        }
        waiting.taken.clone()
    }

    /// Returns the datagrams that were taken last.
    pub fn taken(&self) -> Arc<[Unanswered]> {
        lock(&self.waiting).taken.clone()
    }

    /// Notes that Python has answered what it took.
    pub fn finished(&self) {
        lock(&self.waiting).taken = Arc::new([]);
    }

    fn run(&self) {
        let mut batch = Batch::new(self.socket);
        let mut left = LAST;
        while left > 0 {
            let received = batch.receive();
            let ending = self.ending.load(Ordering::SeqCst);
            match received {
                Ok(number) if ending && number > 0 && batch.query(0).is_empty() => return,
                Ok(number) => {
                    self.answer(&mut batch, number);
                    if ending {
                        left = left.saturating_sub(number);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if ending => return,
                Err(_) => {
                    // An ICMP error about an earlier reply, say; if it is something that stays, do not spin.
                    if self.failed.fetch_add(1, Ordering::Relaxed) % 1024 == 1023 {
                        thread::sleep(Duration::from_millis(10));
                    }
                }
            }
        }
    }

    /// Answers a batch of datagrams, as far as the answers are known.
    #[inline(never)] // a name for profiles and instruction counts
    fn answer(&self, batch: &mut Batch, number: usize) {
        let began = now();
        let mut unanswered = Vec::new();
        {
            let mut table = lock(&self.table);
            for slot in 0..number {
                let Some(source) = Address::read(batch.path(slot).source(self.socket.six)) else { continue };
                let replied = batch.reply(slot, |query, out| {
                    let replied = catch_unwind(AssertUnwindSafe(|| table.reply(query, source, out)));
                    replied.unwrap_or_else(|_| {
                        self.panicked.fetch_add(1, Ordering::Relaxed);
                        None
                    })
                });
                if replied.is_none() {
                    unanswered.push((slot, table.client_number(batch.query(slot), source)));
                }
            }
        }
        // First the replies: Python must not overtake them.
        let lost = batch.send();
        if lost != 0 {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
        if !unanswered.is_empty() {
            self.leave_to_python(batch, &unanswered, began);
        }
        batch.restore(number);
        let answered = number - unanswered.len();
        if answered != 0 {
            lock(&self.durations).add(now() - began, answered as u64);
        }
    }

    /// Leaves the datagrams in some slots to Python, each with the number of its client.
    fn leave_to_python(&self, batch: &Batch, unanswered: &[(usize, u64)], received: f64) {
        let mut waiting = lock(&self.waiting);
        let wakes = waiting.queue.is_empty();
        for &(slot, client) in unanswered {
            let datagram = Unanswered { query: batch.query(slot).into(), path: batch.path(slot).clone(), received };
            if waiting.queue.push(client, datagram, MAX_WAITING).is_some() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        if wakes {
            let one = 1_u64.to_ne_bytes();
            unsafe { libc::write(self.event, one.as_ptr().cast(), one.len()) };
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        unsafe { libc::close(self.event) };
    }
}

/// Locks a mutex whose data no panic leaves half written.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leaves all signals to Python's threads.
fn block_signals() {
    unsafe {
        let mut every: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut every);
        libc::pthread_sigmask(libc::SIG_BLOCK, &every, std::ptr::null_mut());
    }
}

/// Asks the scheduler to let this thread run soon after it wakes, before a thread that computes for long.
///
/// Linux 6.12 and newer do so for threads that want short time slices; others refuse or ignore it, which does no harm.
fn prefer_short_slices() {
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const SLICE: u64 = 100_000; // nanoseconds: the least that Linux accepts
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attributes =
        SchedAttr { size: std::mem::size_of::<SchedAttr>() as u32, nice, runtime: SLICE, ..SchedAttr::default() };
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attributes, 0) };
}
