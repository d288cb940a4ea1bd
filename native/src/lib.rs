// SPDX-License-Identifier: Apache-2.0

//! Repeats the answers that topodns decided in Python, without the interpreter.
//!
//! A thread of its own receives the datagrams of a socket. It answers those whose answer Python made known, and leaves
//! all others to Python. It decides nothing, and knows no more than this needs.

mod address;
mod answer;
mod answer_table;
mod book;
mod datagrams;
mod durations;
mod fair_queue;
mod generations;
mod message;
mod socket;

use pyo3::prelude::*;

#[pymodule]
mod native {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};
    use std::thread::JoinHandle;

    use pyo3::exceptions::{PyIndexError, PyOSError, PyValueError};
    use pyo3::prelude::*;
    use pyo3::pybacked::PyBackedBytes;
    use pyo3::types::PyBytes;

    use crate::address::{Address, Networks, OurNumbers};
    use crate::answer::Answer;
    use crate::answer_table::{self, ClientGroup, EdnsForm, ProxyHeader};
    use crate::book::Place;
    use crate::datagrams::{lock, Shared, Unanswered};
    use crate::durations::Durations;
    use crate::socket::{Socket, BATCH};

    /// Makes a panic a record of Python's log, as every other error is.
    #[pymodule_init]
    fn log_panics(_: &Bound<'_, PyModule>) -> PyResult<()> {
        std::panic::set_hook(Box::new(|panic| {
            let text = format!("internal error of the native code: {panic}");
            // In a thread of its own: the one that panics may hold a lock for which one that holds the interpreter waits.
            std::thread::spawn(move || Python::try_attach(|py| log_error(py, &text)));
        }));
        Ok(())
    }

    fn log_error(py: Python, text: &str) -> PyResult<()> {
        let log = py.import("logging")?.call_method1("getLogger", ("topodns",))?;
        log.call_method1("error", ("%s", text))?;
        Ok(())
    }

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    type Received<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

    #[pyclass(frozen)]
    struct AnswerTable {
        inner: Arc<Mutex<answer_table::AnswerTable>>,
        durations: Arc<Mutex<Durations>>,
    }

    /// What was counted: replies by family, and by the number of the client's origin and the answer's tally; those cut;
    /// those to clients that nothing locates; durations by bound, and their sum.
    #[pyclass(frozen, get_all)]
    struct TakenCounts {
        replies: [HashMap<u32, u64, OurNumbers>; 2],
        truncated: [u64; 2],
        /// Whether a block was named; the octets of its first address, none for ranges that are too many; how many.
        unlocated: Vec<(bool, Vec<u8>, u64)>,
        /// The numbers of tallies, and the addresses of clients that got such answers.
        askers: Vec<(u32, Vec<u8>)>,
        durations: Vec<u64>,
        seconds: f64,
    }

    #[pymethods]
    impl AnswerTable {
        #[new]
        fn new(proxy_headers: Vec<(Vec<u8>, usize, usize)>, bounds: Vec<f64>, seed: u64) -> AnswerTable {
            let headers = proxy_headers
                .into_iter()
                .map(|(start, size, octets)| ProxyHeader { start: start.into(), size, octets })
                .collect();
            AnswerTable {
                inner: Arc::new(Mutex::new(answer_table::AnswerTable::new(headers, seed))),
                durations: Arc::new(Mutex::new(Durations::new(bounds))),
            }
        }

        fn reply<'py>(&self, py: Python<'py>, query: &[u8], source: Address) -> Option<Bound<'py, PyBytes>> {
            let mut out = Vec::new();
            let replied = lock(&self.inner).reply(query, source, &mut out);
            replied.map(|()| PyBytes::new(py, &out))
        }

        fn configure(&self, subnets: Vec<(Network, Place)>, forwarders: Vec<Network>, unknown: Place) {
            let (mut places, mut trusted) = (Networks::default(), Networks::default());
            subnets.iter().for_each(|(network, place)| places.set(network.address, network.length, Some(*place)));
            forwarders.iter().for_each(|network| trusted.set(network.address, network.length, Some(())));
            lock(&self.inner).book().configure(places, trusted, unknown);
        }

        fn places(&self, cluster: usize, changes: Vec<(Address, Option<Place>)>) {
            let mut table = lock(&self.inner);
            let book = table.book();
            changes.into_iter().for_each(|(address, place)| book.set_place(cluster, address, place));
        }

        fn pod_cidrs(&self, cluster: usize, changes: Vec<(Network, Option<Place>)>) {
            let mut table = lock(&self.inner);
            let book = table.book();
            changes.into_iter().for_each(|(cidr, place)| book.set_pod_cidr(cluster, cidr.address, cidr.length, place));
        }

        fn edns(&self, key: &[u8], form: EdnsForm) {
            lock(&self.inner).edns(key, form);
        }

        fn forget_edns(&self) {
            lock(&self.inner).forget_edns();
        }

        fn block(&self, content: &[u8], first: Address, place: Place) {
            lock(&self.inner).block(content, first, place);
        }

        fn answer(
            &self,
            question: &[u8],
            answer: RenderedAnswer,
            service: Option<u64>,
            group: Option<ClientGroup>,
        ) -> PyResult<()> {
            let answer = answer.read().ok_or_else(|| PyValueError::new_err("an answer whose parts do not fit together"))?;
            lock(&self.inner).answer(question, answer, service, group);
            Ok(())
        }

        fn asked<'py>(&self, py: Python<'py>, services: Vec<u64>) -> Vec<Bound<'py, PyBytes>> {
            lock(&self.inner).asked(&services).iter().map(|question| PyBytes::new(py, question)).collect()
        }

        fn publish(&self, serial: u32, gone: Vec<u64>) {
            lock(&self.inner).publish(serial.to_be_bytes(), &gone);
        }

        fn take_counts(&self) -> TakenCounts {
            let counts = std::mem::take(&mut lock(&self.inner).counts);
            let mut durations = lock(&self.durations);
            let empty = vec![0; durations.numbers.len()];
            let unlocated = counts.unlocated.into_iter();
            TakenCounts {
                replies: counts.replies,
                truncated: counts.truncated,
                unlocated: unlocated.map(|(range, times)| (range.is_block(), range.octets(), times)).collect(),
                askers: counts.askers.into_iter().map(|(tally, client)| (tally, Address(client).octets())).collect(),
                durations: std::mem::replace(&mut durations.numbers, empty),
                seconds: std::mem::take(&mut durations.seconds),
            }
        }
    }

    #[pyclass(frozen)]
    struct Datagrams {
        shared: Arc<Shared>,
        thread: Mutex<Option<JoinHandle<()>>>,
    }

    #[pymethods]
    impl Datagrams {
        #[new]
        #[pyo3(signature = (fd, table, *, six, wildcard))]
        fn new(fd: i32, table: &AnswerTable, six: bool, wildcard: bool) -> PyResult<Datagrams> {
            let socket = Socket { fd, six, wildcard };
            let shared = Shared::new(socket, table.inner.clone(), table.durations.clone()).map_err(os_error)?;
            let thread = Mutex::new(Some(shared.start().map_err(os_error)?));
            Ok(Datagrams { shared, thread })
        }

        fn fileno(&self) -> i32 {
            self.shared.event
        }

        fn receive<'py>(&self, py: Python<'py>) -> Vec<Received<'py>> {
            let taken = self.shared.take(BATCH);
            let six = self.shared.socket.six;
            let received =
                |datagram: &Unanswered| (PyBytes::new(py, &datagram.query), PyBytes::new(py, datagram.path.source(six)));
            taken.iter().map(received).collect()
        }

        /// When the first datagram of the last batch was received.
        #[getter]
        fn received_at(&self) -> f64 {
            self.shared.taken().first().map_or(0.0, |datagram| datagram.received)
        }

        fn send(&self, first: usize, replies: Vec<Option<PyBackedBytes>>) -> u64 {
            let taken = self.shared.taken();
            let pairs = taken.iter().skip(first).zip(&replies);
            let written = pairs.filter_map(|(datagram, reply)| Some((&datagram.path, &reply.as_ref()?[..])));
            let lost = self.shared.socket.send(written);
            if first + replies.len() >= taken.len() {
                self.shared.finished();
            }
            lost
        }

        fn path(&self, slot: usize) -> PyResult<Path> {
            let taken = self.shared.taken();
            let datagram = taken.get(slot).ok_or_else(|| PyIndexError::new_err("no such datagram"))?;
            Ok(Path(datagram.path.clone()))
        }

        fn send_along(&self, path: &Path, reply: &[u8]) -> u64 {
            self.shared.socket.send(std::iter::once((&path.0, reply)))
        }

        /// Returns the numbers since the last call: replies lost, errors in receiving, datagrams dropped, panics.
        fn take_failures(&self) -> (u64, u64, u64, u64) {
            let take = |number: &AtomicU64| number.swap(0, Ordering::Relaxed);
            let shared = &self.shared;
            (take(&shared.lost), take(&shared.failed), take(&shared.dropped), take(&shared.panicked))
        }

        fn end(&self, py: Python) {
            self.shared.end();
            if let Some(thread) = lock(&self.thread).take() {
                py.detach(|| thread.join()).ok();
            }
        }
    }

    #[pyclass(frozen)]
    struct Path(crate::socket::Path);

    #[derive(FromPyObject)]
    struct Network {
        address: Address,
        length: u32,
    }

    impl FromPyObject<'_> for Address {
        fn extract_bound(value: &Bound<PyAny>) -> PyResult<Address> {
            Address::read(value.extract()?).ok_or_else(|| PyValueError::new_err("an address has 4 or 16 octets"))
        }
    }

    /// What is repeated of a `RenderedAnswer`.
    #[derive(FromPyObject)]
    struct RenderedAnswer {
        flags: u16,
        section_counts: [u16; 3],
        blob: PyBackedBytes,
        length: usize,
        offsets: Vec<usize>,
        records: usize,
        tail: PyBackedBytes,
        optional: usize,
        serial_at: usize,
        dependent: bool,
        tally: u32,
        noted: bool,
    }

    impl RenderedAnswer {
        /// Returns the answer, None if its parts do not fit together.
        fn read(self) -> Option<Answer> {
            let offsets: Box<[u16]> = self.offsets.get(..=self.records)?.iter().map(|&at| at as u16).collect();
            let records = self.blob.get(..self.length).filter(|_| self.length == offsets[self.records] as usize)?;
            let serial_fits = self.serial_at == 0 || self.serial_at + 4 <= self.tail.len();
            (serial_fits && offsets[0] == 0 && self.optional <= self.tail.len()).then(|| Answer {
                flags: self.flags,
                counts: self.section_counts,
                records: records.into(),
                offsets,
                tail: self.tail[..].into(),
                optional: self.optional,
                serial_at: self.serial_at,
                dependent: self.dependent,
                tally: self.tally,
                noted: self.noted,
            })
        }
    }

    fn os_error(error: std::io::Error) -> PyErr {
        PyOSError::new_err((error.raw_os_error(), error.to_string()))
    }
}
