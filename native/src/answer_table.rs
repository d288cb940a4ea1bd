// SPDX-License-Identifier: Apache-2.0

//! The answers that Python decided, and what selects one of them: a question, and if it depends on the client, values.
//!
//! Nothing here decides anything: whatever is not known is left to Python, which then may make it known.

use std::collections::hash_map::{DefaultHasher, RandomState};
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::address::{mask, Address, OurNumbers};
use crate::answer::{Answer, Chance, Client, Envelope, Written};
use crate::book::{Book, Place};
use crate::generations::Generations;
use crate::message::Query;

/// Client subnets shorter than a host, as in `clients.py`.
const MAX_BLOCKS: usize = 16_384;
/// Forms of EDNS: clients and forwarders write queries in a few ways only.
const MAX_FORMS: usize = 1024;
/// Pairs of a location and a tuple of label keys: 5,000 nodes times some tuples.
const MAX_VALUES: usize = 1 << 19;
/// Pairs of a question and the client's values.
const MAX_CHOICES: usize = 1 << 20;
/// Answers that hold until the next publication, most of them about names that do not exist. `native_feed.py` limits
/// their sizes, so they take some megabytes.
const MAX_UNTIL_PUBLISHED: usize = 16_384;
/// Different answers to one question. Clients who get further ones are left to Python, which remembers as many, and more
/// if the Service has more endpoints.
const MAX_ANSWERS: usize = 1024;
/// Ranges of clients that nothing locates, between two takings. Further ones count as one.
const MAX_RANGES: usize = 1024;
/// Clients by what they got, between two takings, as in `counters.py`. Further ones are noted when they ask again.
const MAX_ASKERS: usize = 8192;
/// Bits of an address that such a range shares, as in `counters.py`: for IPv4 and IPv6.
const RANGE_BITS: [u32; 2] = [24, 64];

const OTHER_RANGES: u128 = 2;

/// Octets from the start of an OPT record, if client subnet is its first option: to the option's content, and to the
/// address in that.
const SUBNET_CONTENT_AT: usize = 15;
const SUBNET_ADDRESS_AT: usize = 19;
/// The longest question: a name of 255 octets, type and class.
const MAX_QUESTION: usize = 259;
const MIN_UDP_REPLY: usize = 512; // RFC 1035, section 4.2.1

/// What a reply needs to know of its query's OPT record.
#[cfg_attr(not(fuzzing), derive(pyo3::FromPyObject))]
pub struct EdnsForm {
    pub limit: usize,
    /// The reply's OPT record without the client subnet's address: for answers that do not depend on the client, and
    /// for those that do.
    pub opts: [Vec<u8>; 2],
    /// Octets of the client subnet's address; whether it is a whole address.
    pub octets: usize,
    pub host: bool,
}

/// The clients that get an answer: those with certain values of some label keys, among them those at a location, and
/// those with other values that lead to the same answer.
#[cfg_attr(not(fuzzing), derive(pyo3::FromPyObject))]
pub struct ClientGroup {
    pub keys: u32,
    pub values: u32,
    pub location: u32,
    pub alike: Vec<u32>,
}

/// The start of a PROXY header with one address family, its size, and the octets of its addresses.
pub struct ProxyHeader {
    pub start: Box<[u8]>,
    pub size: usize,
    pub octets: usize,
}

struct Question {
    number: u64,
    /// The number of the object that the answers were computed from.
    service: u64,
    /// What the answers depend on: the number of a tuple of label keys, None if all clients get the same.
    client_keys: Option<u32>,
    answers: Vec<Answer>,
    /// Whether it was answered since the answer was made known.
    asked: bool,
}

/// The range around a client that nothing locates: its first address, in which the last bit says whether a forwarder
/// named a block, and the last but one stands for ranges beyond `MAX_RANGES`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range(u128);

/// Replies that were written, by family (0: IPv4, 1: IPv6), since they were last taken.
#[derive(Default)]
pub struct Counts {
    /// By the sum of the numbers of the client's origin and the answer's tally.
    pub replies: [HashMap<u32, u64, OurNumbers>; 2],
    pub truncated: [u64; 2],
    pub unlocated: HashMap<Range, u64, OurNumbers>,
    /// The tallies of answers that are `noted`, and the clients with an address and a place that got them.
    pub askers: HashSet<(u32, u128), OurNumbers>,
}

pub struct AnswerTable {
    book: Book,
    /// By the octets of a query's OPT record before the client subnet's address.
    forms: Generations<Box<[u8]>, EdnsForm, RandomState>,
    /// By the content of the client subnet option: the block's first address, and its place.
    blocks: Generations<Box<[u8]>, (Address, Place), RandomState>,
    /// By the numbers of a tuple of label keys and of a location: that of the location's values of these keys.
    values: Generations<(u32, u32), u32, OurNumbers>,
    /// By the numbers of a question and of such values: which of its answers such clients get.
    choices: Generations<(u64, u32), u16, OurNumbers>,
    /// By the question's octets, case folded, as those below.
    questions: HashMap<Arc<[u8]>, Question>,
    /// The questions whose answers were computed from an object: if that changes, they are forgotten.
    by_service: HashMap<u64, Vec<Arc<[u8]>>, OurNumbers>,
    /// The answers that belong to no Service: any publication may change them.
    until_published: Generations<Box<[u8]>, Answer, RandomState>,
    proxy_headers: Vec<ProxyHeader>,
    seed: u64,
    serial: [u8; 4],
    questions_numbered: u64,
    chance: Chance,
    pub counts: Counts,
}

impl AnswerTable {
    pub fn new(proxy_headers: Vec<ProxyHeader>, seed: u64) -> AnswerTable {
        AnswerTable {
            book: Book::default(),
            forms: Generations::new(MAX_FORMS),
            blocks: Generations::new(MAX_BLOCKS),
            values: Generations::new(MAX_VALUES),
            choices: Generations::new(MAX_CHOICES),
            questions: HashMap::new(),
            by_service: HashMap::default(),
            until_published: Generations::new(MAX_UNTIL_PUBLISHED),
            proxy_headers,
            seed,
            serial: [0; 4],
            questions_numbered: 0,
            chance: Chance::new(seed),
            counts: Counts::default(),
        }
    }

    /// Appends the reply to `out`, and counts it. Returns None, and does neither, if Python must answer.
    ///
    /// The steps are those of `Responder.answer`.
    pub fn reply(&mut self, packet: &[u8], source: Address, out: &mut Vec<u8>) -> Option<()> {
        let mut place = self.book.source(source);
        let (packet, in_header) = self.without_proxy_header(packet, place);
        let query = Query::read(packet)?;
        let (mut limit, mut opts, mut address) = (MIN_UDP_REPLY, [&b""[..], b""], &b""[..]);
        let mut host = true;
        if query.with_opt {
            let form = self.forms.get(&query.rest[..query.rest.len().min(SUBNET_ADDRESS_AT)])?;
            if form.octets != 0 {
                address = &query.rest[SUBNET_ADDRESS_AT.min(query.rest.len())..];
            }
            if address.len() != form.octets {
                return None;
            }
            (limit, host) = (form.limit, form.host);
            opts = [&form.opts[0], &form.opts[1]];
        } else if !query.rest.is_empty() {
            return None;
        }
        let mut client = Client { source, named: b"" };
        let (mut first, mut is_block) = (source, false); // the client's first address, if it is a block
        if place.forwarder {
            // A PROXY header overrides the client subnet, even if it names nobody.
            let named = in_header.unwrap_or(address);
            client.named = named;
            match (named.is_empty(), host || in_header.is_some()) {
                (true, _) => return None,
                (_, true) => {
                    first = Address::read(named)?;
                    place = self.book.locate(first);
                }
                (_, false) => {
                    (first, place) = *self.blocks.get(&query.rest[SUBNET_CONTENT_AT..])?;
                    is_block = true;
                }
            };
        } else if !address.is_empty() {
            return None; // who names others but is no forwarder is told so
        }
        let mut folded = [0; MAX_QUESTION];
        let folded = folded.get_mut(..query.question.len())?;
        folded.copy_from_slice(query.question);
        folded.make_ascii_lowercase();
        let answer = match self.questions.get_mut(&*folded) {
            Some(question) => {
                question.asked = true;
                let index = match question.client_keys {
                    None => 0,
                    Some(keys) => {
                        let values = *self.values.get(&(keys, place.location))?;
                        *self.choices.get(&(question.number, values))? as usize
                    }
                };
                question.answers.get_mut(index)?
            }
            None => self.until_published.get(&*folded)?,
        };
        let opt = opts[answer.dependent as usize];
        let envelope = Envelope { limit, opt, address, serial: self.serial, client };
        let written = answer.write(&query, &envelope, &mut self.chance, out)?;
        let family = source.four().is_none() as usize;
        self.counts.count(family, place.origin + answer.tally, written);
        if !place.located {
            self.counts.count_unlocated(is_block, first);
        } else if answer.noted && !is_block {
            self.counts.note_asker(answer.tally, first);
        }
        Some(())
    }

    /// Returns a number for the client of a query: its source, or whom a forwarder names in the usual ways. Nobody can
    /// choose it.
    pub fn client_number(&mut self, packet: &[u8], source: Address) -> u64 {
        let place = self.book.source(source);
        let (packet, in_header) = self.without_proxy_header(packet, place);
        let named = in_header.or_else(|| Query::read(packet)?.subnet()).filter(|_| place.forwarder);
        let mut hasher = DefaultHasher::new();
        (self.seed, source, named).hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the query after a PROXY header, and the client's address in that; only a forwarder may send one.
    fn without_proxy_header<'a>(&self, packet: &'a [u8], source: Place) -> (&'a [u8], Option<&'a [u8]>) {
        if source.forwarder {
            for header in &self.proxy_headers {
                if packet.starts_with(&header.start) && packet.len() >= header.size {
                    let client = &packet[header.start.len()..][..header.octets];
                    return (&packet[header.size..], Some(client));
                }
            }
        }
        (packet, None)
    }

    // What Python makes known.

    /// Returns where addresses are, to change it. What was known of blocks may not hold then.
    pub fn book(&mut self) -> &mut Book {
        self.blocks.clear();
        &mut self.book
    }

    /// Makes a form of EDNS known, by the octets of the OPT record before the client subnet's address.
    pub fn edns(&mut self, key: &[u8], form: EdnsForm) {
        self.forms.insert(key.into(), form);
    }

    pub fn forget_edns(&mut self) {
        self.forms.clear();
    }

    /// Makes the place of a client subnet shorter than a host known, by the option's content.
    pub fn block(&mut self, content: &[u8], first: Address, place: Place) {
        self.blocks.insert(content.into(), (first, place));
    }

    /// Makes an answer known that the clients of a group get, all if None, as long as nothing is forgotten of
    /// `service`; without one, all clients get it until the next publication.
    pub fn answer(&mut self, folded: &[u8], answer: Answer, service: Option<u64>, group: Option<ClientGroup>) {
        let Some(service) = service else {
            return self.until_published.insert(folded.into(), answer);
        };
        let question = self.question(folded, service, group.as_ref().map(|group| group.keys));
        let Some(ClientGroup { keys, values, location, alike }) = group else {
            question.answers = vec![answer];
            return;
        };
        let number = question.number;
        let index = question.answers.iter().position(|known| *known == answer).unwrap_or_else(|| {
            question.answers.push(answer);
            question.answers.len() - 1
        });
        if index >= MAX_ANSWERS {
            question.answers.truncate(MAX_ANSWERS);
            return;
        }
        self.values.insert((keys, location), values);
        for values in alike.into_iter().chain([values]) {
            self.choices.insert((number, values), index as u16);
        }
    }

    fn question(&mut self, folded: &[u8], service: u64, client_keys: Option<u32>) -> &mut Question {
        let known = self.questions.get(folded).map(|known| (known.service, known.client_keys));
        if known != Some((service, client_keys)) {
            let key: Arc<[u8]> = folded.into();
            self.questions_numbered += 1;
            let number = self.questions_numbered;
            let question = Question { number, service, client_keys, answers: Vec::new(), asked: false };
            if known.map(|(service, _)| service) != Some(service) {
                self.by_service.entry(service).or_default().push(key.clone());
            }
            self.questions.insert(key, question);
        }
        self.questions.get_mut(folded).expect("just inserted")
    }

    /// Returns the questions of these objects that were answered since their answers were made known.
    pub fn asked(&self, services: &[u64]) -> Vec<Arc<[u8]>> {
        let keys = services.iter().filter_map(|service| self.by_service.get(service)).flatten();
        keys.filter(|key| self.questions.get(*key).is_some_and(|question| question.asked)).cloned().collect()
    }

    /// Forgets every answer of the services `gone`, and all that hold until a publication. SOA records have `serial` then.
    pub fn publish(&mut self, serial: [u8; 4], gone: &[u64]) {
        self.serial = serial;
        self.until_published.clear();
        for service in gone {
            for key in self.by_service.remove(service).unwrap_or_default() {
                if self.questions.get(&key).is_some_and(|question| question.service == *service) {
                    self.questions.remove(&key);
                }
            }
        }
    }
}

impl Counts {
    fn count(&mut self, family: usize, number: u32, written: Written) {
        *self.replies[family].entry(number).or_default() += 1;
        if matches!(written, Written::Cut) {
            self.truncated[family] += 1;
        }
    }

    fn note_asker(&mut self, tally: u32, client: Address) {
        if self.askers.len() < MAX_ASKERS {
            self.askers.insert((tally, client.0));
        }
    }

    fn count_unlocated(&mut self, is_block: bool, first: Address) {
        let bits = RANGE_BITS[first.four().is_none() as usize] + first.shared_bits();
        let range = Range(first.0 & mask(bits) | is_block as u128);
        let is_new = !self.unlocated.contains_key(&range);
        let others = Range(OTHER_RANGES | is_block as u128);
        let counted = if is_new && self.unlocated.len() >= MAX_RANGES { others } else { range };
        *self.unlocated.entry(counted).or_default() += 1;
    }
}

impl Range {
    pub fn is_block(self) -> bool {
        self.0 & 1 != 0
    }

    /// The octets of its first address, none for ranges beyond `MAX_RANGES`.
    pub fn octets(self) -> Vec<u8> {
        match self.0 & !1 {
            OTHER_RANGES => vec![],
            first => Address(first).octets(),
        }
    }
}
