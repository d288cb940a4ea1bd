// SPDX-License-Identifier: Apache-2.0

//! The answers that Python decided, and what selects one of them: a question, and if it depends on the client, values.
//!
//! Nothing here decides anything: whatever is not known is left to Python, which then may make it known.

use std::collections::hash_map::{DefaultHasher, RandomState};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::address::{Address, Networks, OurNumbers};
use crate::answer::{Answer, Chance, Client, Envelope, Written};
use crate::generations::Generations;
use crate::message::Query;

/// Addresses of clients that no object has: pods that only their pod CIDR locates, and those outside of the cluster.
const MAX_CLIENTS: usize = 1 << 19;
/// Client subnets shorter than a host, as in `clients.py`.
const MAX_BLOCKS: usize = 16_384;
/// Ways to write EDNS, as in `recognition.py`.
const MAX_PROFILES: usize = 1024;
/// Pairs of a location and a tuple of label keys: 5,000 nodes times some tuples.
const MAX_VALUES: usize = 1 << 19;
/// Pairs of a question and the client's values.
const MAX_CHOICES: usize = 1 << 20;
/// Answers that hold until the next publication, most of them about names that do not exist. `repeating.py` limits
/// their sizes, so they take some megabytes.
const MAX_TRANSIENT: usize = 16_384;
/// Different answers to one question. Python remembers as many.
const MAX_ANSWERS: usize = 1024;

/// Octets from the start of an OPT record, if client subnet is its first option: to the option's content, and to the
/// address in that.
const SUBNET_CONTENT_AT: usize = 15;
const SUBNET_ADDRESS_AT: usize = 19;
/// The longest question: a name of 255 octets, type and class.
const MAX_QUESTION: usize = 259;
const MIN_UDP_REPLY: usize = 512; // RFC 1035, section 4.2.1

/// A client's place: the numbers of its location and of its origin, as metrics tell it, whether it forwards, and the
/// number of the range around a client that nothing locates, else 0.
#[derive(Clone, Copy)]
pub struct Place {
    pub location: u32,
    pub origin: u32,
    pub forwarder: bool,
    pub range: u16,
}

/// What a reply needs to know of its query's OPT record, as in `recognition.py`.
pub struct Profile {
    pub limit: usize,
    /// The reply's OPT record without the client subnet's address: for answers that depend on the client, and not.
    pub opts: [Box<[u8]>; 2],
    /// Octets of the client subnet's address; whether it is a whole address.
    pub octets: usize,
    pub host: bool,
}

/// The start of a PROXY header with one address family, its size, and the octets of its addresses.
pub struct ProxyHeader {
    pub start: Box<[u8]>,
    pub size: usize,
    pub octets: usize,
}

struct Places {
    four: Generations<u32, Place, RandomState>,
    six: Generations<[u8; 16], Place, RandomState>,
}

#[derive(Default)]
struct HeldPlaces {
    four: HashMap<u32, Place>,
    six: HashMap<[u8; 16], Place>,
}

struct Question {
    number: u64,
    basis: u64,
    /// What the answers depend on: the number of a tuple of label keys, None if all clients get the same.
    terms: Option<u32>,
    answers: Vec<Answer>,
    /// Whether it was answered since the answer was made known.
    asked: bool,
}

/// Replies that were written, by family (0: IPv4, 1: IPv6), since they were last taken.
#[derive(Default)]
pub struct Numbers {
    /// By the sum of the numbers of the client's origin and the answer's tally.
    pub replies: [HashMap<u32, u64, OurNumbers>; 2],
    pub truncated: [u64; 2],
    /// Those to clients that nothing locates, by the number of the range around the client.
    pub unlocated: HashMap<u16, u64, OurNumbers>,
}

pub struct Repeated {
    profiles: Generations<Box<[u8]>, Profile, RandomState>,
    /// Of every address that an object has.
    held: HeldPlaces,
    /// Of other addresses: as the source of a packet, and named by a forwarder.
    sources: Places,
    clients: Places,
    blocks: Generations<Box<[u8]>, Place, RandomState>,
    values: Generations<(u32, u32), u32, OurNumbers>,
    choices: Generations<(u64, u32), u16, OurNumbers>,
    questions: HashMap<Arc<[u8]>, Question>,
    /// Basis: the number of the Service that an answer was computed from. If that changes, it is forgotten.
    of_basis: HashMap<u64, Vec<Arc<[u8]>>, OurNumbers>,
    /// Answers that belong to no Service. They hold until the next publication.
    transient: Generations<Box<[u8]>, Answer, RandomState>,
    proxy_headers: Vec<ProxyHeader>,
    seed: u64,
    serial: [u8; 4],
    questions_numbered: u64,
    chance: Chance,
    pub numbers: Numbers,
}

impl Repeated {
    pub fn new(proxy_headers: Vec<ProxyHeader>, seed: u64) -> Repeated {
        Repeated {
            profiles: Generations::new(MAX_PROFILES),
            held: HeldPlaces::default(),
            sources: Places::new(),
            clients: Places::new(),
            blocks: Generations::new(MAX_BLOCKS),
            values: Generations::new(MAX_VALUES),
            choices: Generations::new(MAX_CHOICES),
            questions: HashMap::new(),
            of_basis: HashMap::default(),
            transient: Generations::new(MAX_TRANSIENT),
            proxy_headers,
            seed,
            serial: [0; 4],
            questions_numbered: 0,
            chance: Chance::new(seed),
            numbers: Numbers::default(),
        }
    }

    /// Appends the reply to `out`, and counts it. Returns None, and does neither, if Python must answer.
    ///
    /// The steps are those of `Responder.answer`.
    pub fn reply(&mut self, packet: &[u8], source: Address, out: &mut Vec<u8>) -> Option<()> {
        let family = matches!(source, Address::Six(_)) as usize;
        let mut place = self.held.get(source).or_else(|| self.sources.get(source))?;
        let (packet, in_header) = self.without_proxy_header(packet, place);
        let query = Query::read(packet)?;
        let (mut limit, mut opts, mut address) = (MIN_UDP_REPLY, [&b""[..], b""], &b""[..]);
        let mut host = true;
        if query.with_opt {
            let profile = self.profiles.get(&query.rest[..query.rest.len().min(SUBNET_ADDRESS_AT)])?;
            if profile.octets != 0 {
                address = &query.rest[SUBNET_ADDRESS_AT.min(query.rest.len())..];
            }
            if address.len() != profile.octets {
                return None;
            }
            (limit, host) = (profile.limit, profile.host);
            opts = [&profile.opts[0], &profile.opts[1]];
        } else if !query.rest.is_empty() {
            return None;
        }
        let mut client = Client { source: &source, named: b"" };
        if place.forwarder {
            // A PROXY header overrides the client subnet, even if it names nobody.
            let named = in_header.unwrap_or(address);
            client.named = named;
            place = match (named.is_empty(), host || in_header.is_some()) {
                (true, _) => return None,
                (_, true) => {
                    let named = Address::read(named)?;
                    self.held.get(named).or_else(|| self.clients.get(named))?
                }
                (_, false) => *self.blocks.get(&query.rest[SUBNET_CONTENT_AT..])?,
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
                let index = match question.terms {
                    None => 0,
                    Some(terms) => {
                        let values = *self.values.get(&(terms, place.location))?;
                        *self.choices.get(&(question.number, values))? as usize
                    }
                };
                question.answers.get_mut(index)?
            }
            None => self.transient.get(&*folded)?,
        };
        let opt = opts[answer.dependent as usize];
        let envelope = Envelope { limit, opt, address, serial: self.serial, client };
        let written = answer.write(&query, &envelope, &mut self.chance, out)?;
        self.numbers.count(family, place, answer.tally, written);
        Some(())
    }

    /// Returns a number for the client of a query: its source, or whom a forwarder names in the usual ways. Nobody can
    /// choose it.
    pub fn client_number(&mut self, packet: &[u8], source: Address) -> u64 {
        let place = self.held.get(source).or_else(|| self.sources.get(source)).filter(|place| place.forwarder);
        let named = place.and_then(|place| {
            let (packet, in_header) = self.without_proxy_header(packet, place);
            in_header.or_else(|| Query::read(packet)?.subnet())
        });
        let mut hasher = DefaultHasher::new();
        self.seed.hash(&mut hasher);
        match source {
            Address::Four(four) => (four, named).hash(&mut hasher),
            Address::Six(six) => (six, named).hash(&mut hasher),
        }
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

    pub fn learn_profile(&mut self, rest: &[u8], profile: Profile) {
        self.profiles.insert(rest.into(), profile);
    }

    /// Makes the place of an address known, None if no object has the address any more.
    pub fn learn_place(&mut self, address: Address, place: Option<Place>) {
        match (address, place) {
            (Address::Four(four), Some(place)) => drop(self.held.four.insert(four, place)),
            (Address::Four(four), None) => drop(self.held.four.remove(&four)),
            (Address::Six(six), Some(place)) => drop(self.held.six.insert(six, place)),
            (Address::Six(six), None) => drop(self.held.six.remove(&six)),
        }
    }

    pub fn learn_source(&mut self, address: Address, place: Place) {
        self.sources.insert(address, place);
    }

    pub fn learn_client(&mut self, address: Address, place: Place) {
        self.clients.insert(address, place);
    }

    pub fn learn_block(&mut self, content: &[u8], place: Place) {
        self.blocks.insert(content.into(), place);
    }

    /// Makes an answer known that all clients get until the next publication.
    pub fn learn_transient(&mut self, folded: &[u8], answer: Answer) {
        self.transient.insert(folded.into(), answer);
    }

    /// Makes an answer known that all clients get as long as nothing is forgotten of `basis`.
    pub fn learn_answer(&mut self, folded: &[u8], basis: u64, answer: Answer) {
        let question = self.question(folded, basis, None);
        question.answers = vec![answer];
    }

    /// Makes an answer known for clients with certain values of some label keys, among them those at a location.
    ///
    /// `choice` has the numbers of the keys, the location and the values.
    pub fn learn_choice(&mut self, folded: &[u8], basis: u64, choice: (u32, u32, u32), answer: Answer) {
        let (terms, location, values) = choice;
        let question = self.question(folded, basis, Some(terms));
        let number = question.number;
        let index = question.answers.iter().position(|known| *known == answer).unwrap_or_else(|| {
            question.answers.push(answer);
            question.answers.len() - 1
        });
        if index >= MAX_ANSWERS {
            question.answers.truncate(MAX_ANSWERS);
            return;
        }
        self.values.insert((terms, location), values);
        self.choices.insert((number, values), index as u16);
    }

    fn question(&mut self, folded: &[u8], basis: u64, terms: Option<u32>) -> &mut Question {
        let known = self.questions.get(folded).map(|known| (known.basis, known.terms));
        if known != Some((basis, terms)) {
            let key: Arc<[u8]> = folded.into();
            self.questions_numbered += 1;
            let question = Question { number: self.questions_numbered, basis, terms, answers: Vec::new(), asked: false };
            if known.map(|(basis, _)| basis) != Some(basis) {
                self.of_basis.entry(basis).or_default().push(key.clone());
            }
            self.questions.insert(key, question);
        }
        self.questions.get_mut(folded).expect("just inserted")
    }

    // What no longer holds.

    /// Returns the questions on these bases that were answered since their answers were made known.
    pub fn asked(&self, bases: &[u64]) -> Vec<Arc<[u8]>> {
        let of_bases = bases.iter().filter_map(|basis| self.of_basis.get(basis)).flatten();
        of_bases.filter(|key| self.questions.get(*key).is_some_and(|question| question.asked)).cloned().collect()
    }

    /// Forgets every answer whose basis is among `bases`, and all that hold until a publication. Unless `networks` is
    /// None, forgets the places of blocks, and of addresses in these networks that no object has.
    pub fn publish(&mut self, serial: [u8; 4], bases: &[u64], networks: Option<&Networks>) {
        self.serial = serial;
        self.transient.clear();
        for basis in bases {
            for key in self.of_basis.remove(basis).unwrap_or_default() {
                if self.questions.get(&key).is_some_and(|question| question.basis == *basis) {
                    self.questions.remove(&key);
                }
            }
        }
        if let Some(networks) = networks {
            self.sources.forget(networks);
            self.clients.forget(networks);
            self.blocks.clear();
        }
    }

    pub fn forget_profiles(&mut self) {
        self.profiles.clear();
    }
}

impl Places {
    fn new() -> Places {
        Places { four: Generations::new(MAX_CLIENTS), six: Generations::new(MAX_CLIENTS) }
    }

    fn get(&mut self, address: Address) -> Option<Place> {
        match address {
            Address::Four(four) => self.four.get(&four),
            Address::Six(six) => self.six.get(&six),
        }
        .copied()
    }

    fn insert(&mut self, address: Address, place: Place) {
        match address {
            Address::Four(four) => self.four.insert(four, place),
            Address::Six(six) => self.six.insert(six, place),
        }
    }

    fn forget(&mut self, networks: &Networks) {
        if !networks.is_empty() {
            self.four.retain(|address| !networks.have_four(*address));
            self.six.retain(|address| !networks.have_six(address));
        }
    }
}

impl HeldPlaces {
    fn get(&self, address: Address) -> Option<Place> {
        match address {
            Address::Four(four) => self.four.get(&four),
            Address::Six(six) => self.six.get(&six),
        }
        .copied()
    }
}

impl Numbers {
    fn count(&mut self, family: usize, client: Place, tally: u32, written: Written) {
        *self.replies[family].entry(client.origin + tally).or_default() += 1;
        if client.range != 0 {
            *self.unlocated.entry(client.range).or_default() += 1;
        }
        if matches!(written, Written::Cut) {
            self.truncated[family] += 1;
        }
    }
}
