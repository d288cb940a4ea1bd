// SPDX-License-Identifier: Apache-2.0

//! An answer that is repeated: its records, rotated, and cut where they do not fit (RFC 2181, section 9).

use crate::address::Address;
use crate::message::{Query, HEADER, TC};

/// 2^32 divided by the golden ratio, as in `rendering.py`.
const SPREAD: u32 = 0x9e37_79b1;

/// The records of an answer, and under which number it is counted. `rendering.py` says what the fields mean.
#[derive(PartialEq)]
pub struct Answer {
    pub flags: u16,
    /// Records in the answer, authority and additional section.
    pub counts: [u16; 3],
    pub records: Box<[u8]>,
    /// Where each record begins, and the last one ends.
    pub offsets: Box<[u16]>,
    /// What follows: spare records, the authority section and the additional section.
    pub tail: Box<[u8]>,
    /// Octets at the end of `tail` that only Python can leave out, if a reply has no room for them.
    pub optional: usize,
    /// Where in `tail` the serial of the SOA record is, 0 without one.
    pub serial_at: usize,
    /// Whether it depends on the client.
    pub dependent: bool,
    pub tally: u32,
    /// Whether it is noted who gets it.
    pub noted: bool,
}

/// What a reply takes from its query besides the question.
pub struct Envelope<'a> {
    pub limit: usize,
    pub opt: &'a [u8],
    /// The address of the client subnet, the end of the OPT record.
    pub address: &'a [u8],
    pub serial: [u8; 4],
    pub client: Client<'a>,
}

/// Whom a reply is for: `named`, an address or the octets of a block as a forwarder sent them, or the source if empty.
pub struct Client<'a> {
    pub source: Address,
    pub named: &'a [u8],
}

pub enum Written {
    Whole,
    Cut,
}

impl Answer {
    /// Appends the reply to `out`. Returns None, and appends nothing, if Python must leave out some of `optional`.
    pub fn write(&self, query: &Query, envelope: &Envelope, chance: &mut Chance, out: &mut Vec<u8>) -> Option<Written> {
        let around = HEADER + query.question.len() + envelope.opt.len() + envelope.address.len();
        let size = around + self.records.len() + self.tail.len();
        let number = self.offsets.len() - 1;
        if size <= envelope.limit {
            head(out, query, self.flags, self.counts);
            let first = self.offsets[chance.below(number)] as usize;
            out.extend_from_slice(&self.records[first..]);
            out.extend_from_slice(&self.records[..first]);
            let tail = out.len();
            out.extend_from_slice(&self.tail);
            if self.serial_at != 0 {
                out[tail + self.serial_at..][..4].copy_from_slice(&envelope.serial);
            }
            out.extend_from_slice(envelope.opt);
            out.extend_from_slice(envelope.address);
            return Some(Written::Whole);
        }
        if size - self.optional <= envelope.limit {
            return None;
        }
        let start = arc_start(&envelope.client, query.question, number);
        let fit = self.fitting(start, envelope.limit.saturating_sub(around));
        head(out, query, self.flags | TC, [fit as u16, 0, 0]);
        let turn = chance.below(fit);
        self.write_arc(start + turn, fit - turn, out);
        self.write_arc(start, turn, out);
        out.extend_from_slice(envelope.opt);
        out.extend_from_slice(envelope.address);
        Some(Written::Cut)
    }

    /// Appends so many records from record `start` on, going round.
    fn write_arc(&self, start: usize, count: usize, out: &mut Vec<u8>) {
        let number = self.offsets.len() - 1;
        let start = if start < number { start } else { start - number };
        let (begin, end) = (self.offsets[start] as usize, start + count);
        if end <= number {
            out.extend_from_slice(&self.records[begin..self.offsets[end] as usize]);
        } else {
            out.extend_from_slice(&self.records[begin..]);
            out.extend_from_slice(&self.records[..self.offsets[end - number] as usize]);
        }
    }

    /// Returns how many records from record `start` on fit into `room` octets, going round.
    fn fitting(&self, start: usize, room: usize) -> usize {
        let until = |after: &[u16], room: usize| after.partition_point(|&end| end as usize <= room);
        let begin = self.offsets[start] as usize;
        let number = until(&self.offsets[start + 1..], begin + room);
        let left = (begin + room).checked_sub(self.records.len());
        number + left.map_or(0, |left| until(&self.offsets[1..=start], left))
    }
}

/// Returns at which of its records the arc of a client starts: `rendering.py` says what that is.
fn arc_start(client: &Client, question: &[u8], records: usize) -> usize {
    let address = if client.named.is_empty() { Some(client.source) } else { Address::read(client.named) };
    let checksum = match address.map(|address| (address.four(), address.0.to_be_bytes())) {
        Some((Some(four), _)) => crc(0, four.to_be_bytes()),
        Some((None, six)) => crc(0, six),
        None => crc(0, client.named.iter().copied()),
    };
    let checksum = crc(checksum, question.iter().map(u8::to_ascii_lowercase));
    ((checksum.wrapping_mul(SPREAD) as u64 * records as u64) >> 32) as usize
}

/// The CRC-32 of zlib, of octets behind those with the checksum `before`.
fn crc(before: u32, octets: impl IntoIterator<Item = u8>) -> u32 {
    !octets.into_iter().fold(!before, |sum, octet| CRCS[((sum ^ octet as u32) & 0xff) as usize] ^ (sum >> 8))
}

const CRCS: [u32; 256] = {
    let mut sums = [0; 256];
    let mut octet = 0;
    while octet < 256 {
        let (mut sum, mut bit) = (octet as u32, 0);
        while bit < 8 {
            sum = (sum >> 1) ^ ((sum & 1) * 0xedb8_8320);
            bit += 1;
        }
        sums[octet] = sum;
        octet += 1;
    }
    sums
};

fn head(out: &mut Vec<u8>, query: &Query, flags: u16, counts: [u16; 3]) {
    out.extend_from_slice(query.id);
    let [answers, authority, additional] = counts;
    for number in [flags | query.copied, 1, answers, authority, additional + query.with_opt as u16] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    out.extend_from_slice(query.question);
}

/// A source of random numbers (xorshift64*, Vigna 2016): they spread load, and keep no secret.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance(seed | 1)
    }

    /// Returns a number below `bound`, 0 if that is 0.
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((number * bound as u64) >> 32) as usize
    }
}
