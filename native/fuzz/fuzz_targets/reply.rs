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
#[path = "../../src/generations.rs"]
mod generations;
#[path = "../../src/message.rs"]
mod message;
#[path = "../../src/repeated.rs"]
mod repeated;

use std::str::SplitAsciiWhitespace;
use std::sync::{Mutex, OnceLock};
use std::{env, fs};

use libfuzzer_sys::fuzz_target;

use address::Address;
use answer::Answer;
use message::HEADER;
use repeated::{Place, Profile, ProxyHeader, Repeated};

/// The file that `tests/fuzz/native.py` writes: what Python made known to the native code of each server.
const LEARNED: &str = "TOPODNS_FUZZ_LEARNED";
const RESPONSE: u8 = 0x80;
const HEADERS: [usize; 3] = [0, 28, 52]; // octets of a PROXY header: none, for IPv4, for IPv6
const MIN_UDP_REPLY: u16 = 512;

#[derive(Default)]
struct Known {
    sources: Vec<Vec<u8>>,
    servers: Vec<Repeated>,
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
fn replied(server: &mut Repeated, packet: &[u8], source: &[u8]) -> Option<usize> {
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

/// Reads lines of words: a name, then numbers (`1` or `1,2`), octets (`x00ff`) and `-` for None.
fn read(lines: &str) -> Known {
    let mut known = Known::default();
    let mut headers = Vec::new();
    for line in lines.lines() {
        let mut words = Words(line.split_ascii_whitespace());
        let name = words.word();
        match name {
            "from" => known.sources.push(words.octets()),
            "header" => headers.push(ProxyHeader {
                start: words.octets().into(),
                size: words.number() as usize,
                octets: words.number() as usize,
            }),
            "server" => known.servers.push(Repeated::new(std::mem::take(&mut headers), 0)),
            _ => learn(known.servers.last_mut().expect("a server"), name, &mut words),
        }
    }
    known
}

fn learn(server: &mut Repeated, name: &str, words: &mut Words) {
    match name {
        "learn_profile" => {
            let rest = words.octets();
            let limit = words.number() as usize;
            let opts = [words.octets().into(), words.octets().into()];
            let (octets, host) = (words.number() as usize, words.number() != 0);
            server.learn_profile(&rest, Profile { limit, opts, octets, host });
        }
        "learn_place" => server.learn_place(words.address(), words.place()),
        "learn_source" => server.learn_source(words.address(), words.place().expect("a place")),
        "learn_client" => server.learn_client(words.address(), words.place().expect("a place")),
        "learn_block" => server.learn_block(&words.octets(), words.place().expect("a place")),
        "learn_transient" => server.learn_transient(&words.octets(), words.answer()),
        "learn_answer" => server.learn_answer(&words.octets(), words.number(), words.answer()),
        "learn_choice" => {
            let (question, basis, choice) = (words.octets(), words.number(), words.numbers());
            let choice = (choice[0] as u32, choice[1] as u32, choice[2] as u32);
            server.learn_choice(&question, basis, choice, words.answer());
        }
        "publish" => server.publish((words.number() as u32).to_be_bytes(), &[], None),
        "forget_profiles" => server.forget_profiles(),
        _ => panic!("{name}: nothing of that name can be made known"),
    }
}

struct Words<'a>(SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self) -> &'a str {
        self.0.next().expect("one more word")
    }

    fn octets(&mut self) -> Vec<u8> {
        let digits = self.word().strip_prefix('x').expect("octets");
        let octet = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
        (0..digits.len()).step_by(2).map(octet).collect()
    }

    fn numbers(&mut self) -> Vec<u64> {
        self.word().split(',').map(|number| number.parse().expect("a number")).collect()
    }

    fn number(&mut self) -> u64 {
        self.numbers()[0]
    }

    fn address(&mut self) -> Address {
        Address::read(&self.octets()).expect("an address")
    }

    fn place(&mut self) -> Option<Place> {
        let word = self.word();
        if word == "-" {
            return None;
        }
        let numbers = Words(word.split_ascii_whitespace()).numbers();
        let [location, origin, forwarder, range] = numbers[..] else { panic!("a place has four numbers") };
        Some(Place {
            location: location as u32,
            origin: origin as u32,
            forwarder: forwarder != 0,
            range: range as u16,
        })
    }

    fn answer(&mut self) -> Answer {
        let flags = self.number() as u16;
        let counts = self.numbers();
        Answer {
            flags,
            counts: [counts[0] as u16, counts[1] as u16, counts[2] as u16],
            records: self.octets().into(),
            offsets: self.numbers().into_iter().map(|offset| offset as u16).collect(),
            tail: self.octets().into(),
            glue: self.number() as usize,
            serial_at: self.number() as usize,
            dependent: self.number() != 0,
            tally: self.number() as u32,
        }
    }
}
