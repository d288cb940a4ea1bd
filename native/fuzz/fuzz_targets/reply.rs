// SPDX-License-Identifier: Apache-2.0

//! Asks the native code, with all that Python made known, any octets: `tests/fuzz/inputs.py` says how to read them.
//!
//! A reply must belong to its query, and be no longer than the query allows; a second one must have the same size.

#![no_main]
#![allow(dead_code)] // the native code uses more of its modules

#[path = "../../src/address.rs"]
mod address;
#[path = "../../src/answer.rs"]
mod answer;
#[path = "../../src/answer_table.rs"]
mod answer_table;
#[path = "../../src/book.rs"]
mod book;
#[path = "../../src/generations.rs"]
mod generations;
#[path = "../../src/message.rs"]
mod message;

use std::iter::Peekable;
use std::str::SplitAsciiWhitespace;
use std::sync::{Mutex, OnceLock};
use std::{env, fs};

use libfuzzer_sys::fuzz_target;

use address::{Address, Networks};
use answer::Answer;
use answer_table::{AnswerTable, ClientGroup, EdnsForm, ProxyHeader};
use book::Place;
use message::HEADER;

/// The file that `tests/fuzz/native.py` writes: what Python made known to the native code of each server.
const LEARNED: &str = "TOPODNS_FUZZ_LEARNED";
const RESPONSE: u8 = 0x80;
const HEADERS: [usize; 3] = [0, 28, 52]; // octets of a PROXY header: none, for IPv4, for IPv6
const MIN_UDP_REPLY: u16 = 512;

#[derive(Default)]
struct Known {
    sources: Vec<Vec<u8>>,
    servers: Vec<AnswerTable>,
}

static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();

fuzz_target!(
    init: {
        let path = env::var(LEARNED).unwrap_or_else(|_| panic!("{LEARNED} names no file: run make fuzz"));
        let known = read(&fs::read_to_string(path).expect("readable"));
        KNOWN.set(Mutex::new(known)).ok();
    },
    |data: &[u8]| {
        let Some((&first, packet)) = data.split_first() else { return };
        let mut known = KNOWN.get().expect("set above").lock().expect("no panic before");
        let Known { sources, servers } = &mut *known;
        let source = &sources[first as usize & 7];
        let server = &mut servers[first as usize >> 4 & 1];
        if let Some(size) = replied(server, packet, source) {
            assert_eq!(replied(server, packet, source), Some(size), "the same query, replies of two sizes");
        }
    }
);

/// Returns the size of the reply, None if Python must reply. Panics if the reply is not one to this packet.
fn replied(server: &mut AnswerTable, packet: &[u8], source: &[u8]) -> Option<usize> {
    const BEFORE: &[u8] = b"replies of the same batch";
    let mut out = BEFORE.to_vec();
    let replied = server.reply(packet, Address::read(source).expect("an address"), &mut out);
    let reply = out.strip_prefix(BEFORE).expect("nothing before it is touched");
    if replied.is_none() {
        assert!(reply.is_empty(), "octets of a reply that there is not");
        return None;
    }
    assert!(reply.len() > HEADER && reply[2] & RESPONSE != 0);
    let question = HEADER + reply[HEADER..].iter().position(|&octet| octet == 0).expect("a name") + 5;
    let asked = |query: &&[u8]| query[..2] == reply[..2] && query.get(HEADER..question) == Some(&reply[HEADER..question]);
    let mut queries = HEADERS.iter().filter_map(|&size| packet.get(size..)).filter(|query| query.len() >= HEADER);
    let query = queries.find(asked).expect("a query with its ID and its question");
    let size = query.get(question + 3..question + 5); // of the OPT record, the only one that there may be
    let limit = size.map_or(MIN_UDP_REPLY, |size| u16::from_be_bytes([size[0], size[1]]).max(MIN_UDP_REPLY));
    assert!(reply.len() <= limit as usize, "{} octets, {limit} are allowed", reply.len());
    Some(reply.len())
}

/// Reads lines of words: a name, then numbers, octets (`x00ff`), `-` for None, and lists that begin with their length.
fn read(lines: &str) -> Known {
    let mut known = Known::default();
    let mut headers = Vec::new();
    for line in lines.lines() {
        let mut words = Words(line.split_ascii_whitespace().peekable());
        let name = words.word();
        match name {
            "from" => known.sources.push(words.octets()),
            "header" => headers.push(ProxyHeader {
                start: words.octets().into(),
                size: words.number() as usize,
                octets: words.number() as usize,
            }),
            "server" => known.servers.push(AnswerTable::new(std::mem::take(&mut headers), 0)),
            _ => learn(known.servers.last_mut().expect("a server"), name, &mut words),
        }
    }
    known
}

fn learn(server: &mut AnswerTable, name: &str, words: &mut Words) {
    match name {
        "configure" => {
            let (mut subnets, mut forwarders) = (Networks::default(), Networks::default());
            words.each(|words| subnets.set(words.address(), words.number() as u32, Some(words.place())));
            words.each(|words| forwarders.set(words.address(), words.number() as u32, Some(())));
            server.book().configure(subnets, forwarders, words.place());
        }
        "places" => {
            let cluster = words.number() as usize;
            words.each(|words| server.book().set_place(cluster, words.address(), words.optional(Words::place)));
        }
        "pod_cidrs" => {
            let cluster = words.number() as usize;
            words.each(|words| {
                let (address, length) = (words.address(), words.number() as u32);
                server.book().set_pod_cidr(cluster, address, length, words.optional(Words::place));
            });
        }
        "block" => server.block(&words.octets(), words.address(), words.place()),
        "edns" => {
            let (key, limit) = (words.octets(), words.number() as usize);
            let opts = [words.octets(), words.octets()];
            let (octets, host) = (words.number() as usize, words.number() != 0);
            server.edns(&key, EdnsForm { limit, opts, octets, host });
        }
        "forget_edns" => server.forget_edns(),
        "answer" => {
            let (question, answer) = (words.octets(), words.answer());
            let (service, group) = (words.optional(Words::number), words.optional(Words::group));
            server.answer(&question, answer, service, group);
        }
        "publish" => server.publish((words.number() as u32).to_be_bytes(), &[]),
        _ => panic!("{name}: nothing of that name can be made known"),
    }
}

struct Words<'a>(Peekable<SplitAsciiWhitespace<'a>>);

impl<'a> Words<'a> {
    fn word(&mut self) -> &'a str {
        self.0.next().expect("one more word")
    }

    fn octets(&mut self) -> Vec<u8> {
        let digits = self.word().strip_prefix('x').expect("octets");
        let octet = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
        (0..digits.len()).step_by(2).map(octet).collect()
    }

    fn number(&mut self) -> u64 {
        self.word().parse().expect("a number")
    }

    fn each(&mut self, mut read: impl FnMut(&mut Self)) {
        (0..self.number()).for_each(|_| read(self));
    }

    fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        match self.0.next_if_eq(&"-") {
            Some(_) => None,
            None => Some(read(self)),
        }
    }

    fn address(&mut self) -> Address {
        Address::read(&self.octets()).expect("an address")
    }

    fn place(&mut self) -> Place {
        let (location, origin) = (self.number() as u32, self.number() as u32);
        Place { location, origin, forwarder: self.number() != 0, located: self.number() != 0 }
    }

    fn group(&mut self) -> ClientGroup {
        let (keys, values) = (self.number() as u32, self.number() as u32);
        ClientGroup { keys, values, location: self.number() as u32, alike: vec![self.number() as u32] }
    }

    fn answer(&mut self) -> Answer {
        let flags = self.number() as u16;
        let counts = [(); 3].map(|()| self.number() as u16);
        let records = self.octets().into();
        let mut offsets = Vec::new();
        self.each(|words| offsets.push(words.number() as u16));
        Answer {
            flags,
            counts,
            records,
            offsets: offsets.into(),
            tail: self.octets().into(),
            optional: self.number() as usize,
            serial_at: self.number() as usize,
            dependent: self.number() != 0,
            tally: self.number() as u32,
            noted: true,
        }
    }
}
