//! An answer that is repeated: its records, rotated, and cut where they do not fit (RFC 2181, section 9).

use crate::message::{Query, HEADER, TC};

/// The records of an answer, and under which number it is counted. `rendering.py` says what the fields mean.
#[derive(PartialEq)]
pub struct Answer {
    pub flags: u16,
    /// Records in the answer, authority and additional section.
    pub counts: [u16; 3],
    pub records: Box<[u8]>,
    /// Where each record begins, and the last one ends.
    pub offsets: Box<[u16]>,
    /// The authority section and the additional section.
    pub tail: Box<[u8]>,
    /// Octets of the additional section, the end of `tail`.
    pub glue: usize,
    /// Where in `tail` the serial of the SOA record is, 0 without one.
    pub serial_at: usize,
    /// Whether it depends on the client.
    pub dependent: bool,
    pub tally: u32,
}

/// An answer, and which record its next reply begins with.
pub struct Rotated {
    pub answer: Answer,
    turns: Turns,
    /// Cut replies have their own turns: else a client that asks again over TCP would take two turns of one round.
    cut_turns: Turns,
}

/// Rounds in which each record has one turn, in a new random order.
struct Turns {
    order: Box<[u16]>,
    next: usize,
}

/// What a reply takes from its query besides the question.
pub struct Envelope<'a> {
    pub limit: usize,
    pub opt: &'a [u8],
    /// The address of the client subnet, the end of the OPT record.
    pub address: &'a [u8],
    pub serial: [u8; 4],
}

pub enum Written {
    Whole,
    Cut,
}

impl Rotated {
    /// `turns` and `cut_turns` are the records that the next replies begin with, the rest of a round. None unless they
    /// are different records of the answer.
    pub fn new(answer: Answer, turns: &[u16], cut_turns: &[u16]) -> Option<Rotated> {
        let records = answer.offsets.len().saturating_sub(1);
        Some(Rotated { answer, turns: Turns::new(records, turns)?, cut_turns: Turns::new(records, cut_turns)? })
    }

    /// Appends the reply to `out`. Returns None, and appends nothing, if some of the glue would have to be left out.
    pub fn write(
        &mut self,
        query: &Query,
        envelope: &Envelope,
        chance: &mut Chance,
        out: &mut Vec<u8>,
    ) -> Option<Written> {
        let answer = &self.answer;
        let around = HEADER + query.question.len() + envelope.opt.len() + envelope.address.len();
        let size = around + answer.records.len() + answer.tail.len();
        if size <= envelope.limit {
            let first = answer.offsets[self.turns.take(chance)] as usize;
            head(out, query, answer.flags, answer.counts);
            out.extend_from_slice(&answer.records[first..]);
            out.extend_from_slice(&answer.records[..first]);
            let tail = out.len();
            out.extend_from_slice(&answer.tail);
            if answer.serial_at != 0 {
                out[tail + answer.serial_at..][..4].copy_from_slice(&envelope.serial);
            }
            out.extend_from_slice(envelope.opt);
            out.extend_from_slice(envelope.address);
            return Some(Written::Whole);
        }
        if size - answer.glue <= envelope.limit {
            return None;
        }
        let room = envelope.limit.saturating_sub(around);
        let first = answer.offsets[self.cut_turns.take(chance)] as usize;
        let (number, until, wrapped) = answer.fitting(first, room);
        head(out, query, answer.flags | TC, [number, 0, 0]);
        out.extend_from_slice(&answer.records[first..until]);
        out.extend_from_slice(&answer.records[..wrapped]);
        out.extend_from_slice(envelope.opt);
        out.extend_from_slice(envelope.address);
        Some(Written::Cut)
    }
}

impl Turns {
    fn new(records: usize, rest: &[u16]) -> Option<Turns> {
        let mut had_its_turn = vec![true; records];
        for &record in rest {
            *had_its_turn.get_mut(record as usize)? = false;
        }
        let mut order: Vec<u16> = (0..records as u16).filter(|&record| had_its_turn[record as usize]).collect();
        let next = order.len();
        order.extend_from_slice(rest);
        (order.len() == records).then(|| Turns { order: order.into(), next })
    }

    /// Returns the record whose turn it is, 0 if there is none.
    fn take(&mut self, chance: &mut Chance) -> usize {
        if self.next == self.order.len() {
            for last in (1..self.order.len()).rev() {
                self.order.swap(last, chance.below(last + 1));
            }
            self.next = 0;
        }
        let record = self.order.get(self.next).copied().unwrap_or(0);
        self.next = (self.next + 1).min(self.order.len());
        record as usize
    }
}

impl Answer {
    /// Returns how many records from the offset `first` on fit into `room` octets, going round, where they end, and
    /// where those that follow the last record end.
    fn fitting(&self, first: usize, room: usize) -> (u16, usize, usize) {
        let start = self.offsets.partition_point(|&offset| (offset as usize) < first);
        let before_end = self.offsets[start..].partition_point(|&offset| offset as usize <= first + room) - 1;
        let until = self.offsets[start + before_end] as usize;
        if until < self.records.len() {
            return (before_end as u16, until, 0);
        }
        let left = room - (until - first);
        let wrapped = self.offsets[..=start].partition_point(|&offset| offset as usize <= left) - 1;
        ((before_end + wrapped) as u16, until, self.offsets[wrapped] as usize)
    }
}

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

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((number * bound as u64) >> 32) as usize
    }
}
