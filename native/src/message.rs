// SPDX-License-Identifier: Apache-2.0

//! What is needed of a DNS message: where its parts are. Whatever is unusual is left to Python.

pub const HEADER: usize = 12;
const AD: u16 = 0x0020;
const CD: u16 = 0x0010;
const RD: u16 = 0x0100;
pub const TC: u16 = 0x0200;
/// Octets of an OPT record before its options.
const OPT_FIXED: usize = 11;
const CLIENT_SUBNET: u16 = 8;

/// The parts of a plain query: one question, and perhaps one record after it, which should be an OPT record.
pub struct Query<'a> {
    pub id: &'a [u8],
    /// The flags that a reply repeats.
    pub copied: u16,
    pub with_opt: bool,
    pub question: &'a [u8],
    /// The octets behind the question.
    pub rest: &'a [u8],
}

impl<'a> Query<'a> {
    /// Returns the parts, None if the query is not plain.
    ///
    /// A zero octet inside a label ends the question too early. No known question equals such a prefix.
    pub fn read(packet: &'a [u8]) -> Option<Query<'a>> {
        let header = packet.get(..HEADER)?;
        let flags = u16::from_be_bytes([header[2], header[3]]);
        let additional = header[11];
        if flags & !(RD | CD | AD) != 0 || header[4..11] != [0, 1, 0, 0, 0, 0, 0] || additional > 1 {
            return None;
        }
        let end = HEADER + packet[HEADER..].iter().position(|&octet| octet == 0)? + 5;
        Some(Query {
            id: &header[..2],
            copied: flags & (RD | CD),
            with_opt: additional == 1,
            question: packet.get(HEADER..end)?,
            rest: &packet[end..],
        })
    }

    /// The content of the client subnet option, if it is the first option of an OPT record.
    pub fn subnet(&self) -> Option<&'a [u8]> {
        let option = self.rest.get(OPT_FIXED..)?;
        let length = u16::from_be_bytes([*option.get(2)?, *option.get(3)?]) as usize;
        option.get(4..4 + length).filter(|_| self.with_opt && option.starts_with(&CLIENT_SUBNET.to_be_bytes()))
    }
}
