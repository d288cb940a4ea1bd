// SPDX-License-Identifier: Apache-2.0

//! Repeats the answers that topodns decided in Python, without the interpreter.
//!
//! A thread of its own receives the datagrams of a socket. It answers those whose answer Python made known, and leaves
//! all others to Python. It decides nothing, and knows no more than this needs.

mod address;
mod answer;
mod datagrams;
mod durations;
mod fair_queue;
mod generations;
mod message;
mod repeated;
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
    use crate::datagrams::{lock, Shared, Unanswered};
    use crate::durations::Durations;
    use crate::repeated::{self, Place, Profile, ProxyHeader};
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

    /// The numbers of its location and of its origin; whether it is a forwarder; the number of the range around it.
    type KnownPlace = (u32, u32, bool, u16);
    type Received<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);
    /// Flags; records in each section; the records; their offsets; what follows; glue in it; serial in it; whether it
    /// depends on the client; its tally.
    type Parts = (u16, [u16; 3], PyBackedBytes, Vec<u16>, PyBackedBytes, usize, usize, bool, u32);

    type TakenNumbers = ([HashMap<u32, u64, OurNumbers>; 2], [u64; 2], HashMap<u16, u64, OurNumbers>, Vec<u64>, f64);

    #[pyclass(frozen)]
    struct Repeated {
        inner: Arc<Mutex<repeated::Repeated>>,
        durations: Arc<Mutex<Durations>>,
    }

    #[pymethods]
    impl Repeated {
        #[new]
        fn new(proxy_headers: Vec<(Vec<u8>, usize, usize)>, bounds: Vec<f64>, seed: u64) -> Repeated {
            let headers = proxy_headers
                .into_iter()
                .map(|(start, size, octets)| ProxyHeader { start: start.into(), size, octets })
                .collect();
            Repeated {
                inner: Arc::new(Mutex::new(repeated::Repeated::new(headers, seed))),
                durations: Arc::new(Mutex::new(Durations::new(bounds))),
            }
        }

        fn reply<'py>(&self, py: Python<'py>, query: &[u8], source: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
            let mut out = Vec::new();
            let replied = lock(&self.inner).reply(query, address(source)?, &mut out);
            Ok(replied.map(|()| PyBytes::new(py, &out)))
        }

        #[pyo3(signature = (rest, *, limit, opts, octets, host))]
        fn learn_profile(&self, rest: &[u8], limit: usize, opts: (PyBackedBytes, PyBackedBytes), octets: usize, host: bool) {
            let opts = [opts.0[..].into(), opts.1[..].into()];
            lock(&self.inner).learn_profile(rest, Profile { limit, opts, octets, host });
        }

        fn learn_places(&self, places: Vec<(PyBackedBytes, Option<KnownPlace>)>) -> PyResult<()> {
            let mut inner = lock(&self.inner);
            for (octets, place) in places {
                inner.learn_place(address(&octets)?, place.map(to_place));
            }
            Ok(())
        }

        fn learn_source(&self, source: &[u8], place: KnownPlace) -> PyResult<()> {
            lock(&self.inner).learn_source(address(source)?, to_place(place));
            Ok(())
        }

        fn learn_client(&self, client: &[u8], place: KnownPlace) -> PyResult<()> {
            lock(&self.inner).learn_client(address(client)?, to_place(place));
            Ok(())
        }

        fn learn_block(&self, content: &[u8], place: KnownPlace) {
            lock(&self.inner).learn_block(content, to_place(place));
        }

        fn learn_transient(&self, question: &[u8], parts: Parts) -> PyResult<()> {
            lock(&self.inner).learn_transient(question, answer(parts)?);
            Ok(())
        }

        fn learn_answer(&self, question: &[u8], basis: u64, parts: Parts) -> PyResult<()> {
            lock(&self.inner).learn_answer(question, basis, answer(parts)?);
            Ok(())
        }

        /// *choice*: the number of the terms, of the client's location, and of its values.
        fn learn_choice(&self, question: &[u8], basis: u64, choice: (u32, u32, u32), parts: Parts) -> PyResult<()> {
            lock(&self.inner).learn_choice(question, basis, choice, answer(parts)?);
            Ok(())
        }

        fn asked<'py>(&self, py: Python<'py>, bases: Vec<u64>) -> Vec<Bound<'py, PyBytes>> {
            lock(&self.inner).asked(&bases).iter().map(|question| PyBytes::new(py, question)).collect()
        }

        #[pyo3(signature = (serial, bases, networks))]
        fn publish(
            &self,
            serial: u32,
            bases: Vec<u64>,
            networks: Option<Vec<(PyBackedBytes, u32)>>,
        ) -> PyResult<()> {
            let mut changed = networks.as_ref().map(|_| Networks::default());
            for (octets, length) in networks.iter().flatten() {
                let known = changed.as_mut().and_then(|changed| changed.add(octets, *length));
                known.ok_or_else(|| PyValueError::new_err("no network"))?;
            }
            lock(&self.inner).publish(serial.to_be_bytes(), &bases, changed.as_ref());
            Ok(())
        }

        fn forget_profiles(&self) {
            lock(&self.inner).forget_profiles();
        }

        /// Returns the numbers since the last call: replies by origin and tally (IPv4, IPv6), those cut, those to clients
        /// that nothing locates by range, durations by bound, and their sum.
        fn take_numbers(&self) -> TakenNumbers {
            let numbers = std::mem::take(&mut lock(&self.inner).numbers);
            let mut durations = lock(&self.durations);
            let empty = vec![0; durations.numbers.len()];
            let by_bound = std::mem::replace(&mut durations.numbers, empty);
            let seconds = std::mem::take(&mut durations.seconds);
            (numbers.replies, numbers.truncated, numbers.unlocated, by_bound, seconds)
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
        #[pyo3(signature = (fd, repeated, *, six, wildcard))]
        fn new(fd: i32, repeated: &Repeated, six: bool, wildcard: bool) -> PyResult<Datagrams> {
            let socket = Socket { fd, six, wildcard };
            let shared = Shared::new(socket, repeated.inner.clone(), repeated.durations.clone()).map_err(os_error)?;
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

        /// Returns the numbers since the last call: replies lost, errors in receiving, datagrams dropped.
        fn take_failures(&self) -> (u64, u64, u64) {
            let take = |number: &AtomicU64| number.swap(0, Ordering::Relaxed);
            (take(&self.shared.lost), take(&self.shared.failed), take(&self.shared.dropped))
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

    fn address(octets: &[u8]) -> PyResult<Address> {
        Address::read(octets).ok_or_else(|| PyValueError::new_err("an address has 4 or 16 octets"))
    }

    fn to_place((location, origin, forwarder, range): KnownPlace) -> Place {
        Place { location, origin, forwarder, range }
    }

    fn answer(parts: Parts) -> PyResult<Answer> {
        let (flags, counts, records, offsets, tail, glue, serial_at, dependent, tally) = parts;
        let whole = offsets.first() == Some(&0) && offsets.last().map(|&end| end as usize) == Some(records.len());
        if !whole || glue > tail.len() || (serial_at != 0 && serial_at + 4 > tail.len()) {
            return Err(PyValueError::new_err("the parts of an answer do not fit together"));
        }
        let (records, offsets, tail) = (records[..].into(), offsets.into(), tail[..].into());
        Ok(Answer { flags, counts, records, offsets, tail, glue, serial_at, dependent, tally })
    }

    fn os_error(error: std::io::Error) -> PyErr {
        PyOSError::new_err((error.raw_os_error(), error.to_string()))
    }
}
