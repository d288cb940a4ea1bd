// SPDX-License-Identifier: Apache-2.0

//! IP addresses as keys, and networks of them.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};

const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// A packed address; an IPv4-mapped IPv6 address is the same as the IPv4 address in it.
#[derive(Clone, Copy)]
pub enum Address {
    Four(u32),
    Six([u8; 16]),
}

impl Address {
    /// Reads 4 or 16 octets; None for any other number.
    pub fn read(octets: &[u8]) -> Option<Address> {
        if let Ok(four) = <[u8; 4]>::try_from(octets) {
            return Some(Address::Four(u32::from_be_bytes(four)));
        }
        let six = <[u8; 16]>::try_from(octets).ok()?;
        Some(match six.strip_prefix(&MAPPED) {
            Some(&[a, b, c, d]) => Address::Four(u32::from_be_bytes([a, b, c, d])),
            _ => Address::Six(six),
        })
    }
}

/// Networks, to look up which addresses are in one of them: one look-up for each length of their prefixes.
#[derive(Default)]
pub struct Networks {
    four: Vec<(u32, HashSet<u32>)>,
    six: Vec<(u128, HashSet<u128>)>,
}

impl Networks {
    /// Adds the network of all addresses that share the first `length` bits with `address`. None if it has none.
    pub fn add(&mut self, address: &[u8], length: u32) -> Option<()> {
        match Address::read(address)? {
            Address::Four(four) => add(&mut self.four, u32::MAX.checked_shl(32 - length).unwrap_or(0), four),
            Address::Six(six) => {
                add(&mut self.six, u128::MAX.checked_shl(128 - length).unwrap_or(0), u128::from_be_bytes(six))
            }
        }
        Some(())
    }

    pub fn is_empty(&self) -> bool {
        self.four.is_empty() && self.six.is_empty()
    }

    pub fn have_four(&self, address: u32) -> bool {
        self.four.iter().any(|(mask, networks)| networks.contains(&(address & mask)))
    }

    pub fn have_six(&self, address: &[u8; 16]) -> bool {
        let number = u128::from_be_bytes(*address);
        self.six.iter().any(|(mask, networks)| networks.contains(&(number & mask)))
    }
}

fn add<N: Copy + Eq + Hash>(by_mask: &mut Vec<(N, HashSet<N>)>, mask: N, network: N) {
    match by_mask.iter_mut().find(|(known, _)| *known == mask) {
        Some((_, networks)) => drop(networks.insert(network)),
        None => by_mask.push((mask, HashSet::from([network]))),
    }
}

/// Hashes numbers that no client chooses, such as identifiers of ours.
#[derive(Default)]
pub struct NumberHasher(u64);

pub type OurNumbers = BuildHasherDefault<NumberHasher>;

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed")
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        // Fibonacci hashing of each number with those before; the map takes its high and its low bits.
        let product = (self.0.rotate_left(32) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}
