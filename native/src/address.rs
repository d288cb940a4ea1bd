// SPDX-License-Identifier: Apache-2.0

//! IP addresses as numbers, and networks of them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

const MAPPED: u128 = 0xffff << 32;

/// An address as a number; an IPv4 address is the same as the IPv4-mapped IPv6 address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address(pub u128);

impl Address {
    /// Reads 4 or 16 octets; None for any other number.
    pub fn read(octets: &[u8]) -> Option<Address> {
        if let Ok(four) = <[u8; 4]>::try_from(octets) {
            return Some(Address(MAPPED | u32::from_be_bytes(four) as u128));
        }
        Some(Address(u128::from_be_bytes(octets.try_into().ok()?)))
    }

    /// Returns 4 or 16 octets.
    pub fn octets(self) -> Vec<u8> {
        self.four().map_or(self.0.to_be_bytes().to_vec(), |four| four.to_be_bytes().to_vec())
    }

    /// The IPv4 address, None if it is an IPv6 address.
    pub fn four(self) -> Option<u32> {
        (self.0 & !(u32::MAX as u128) == MAPPED).then_some(self.0 as u32)
    }

    /// The bits that all addresses of some family share: an IPv4 address has 96 more bits than it has itself.
    pub fn shared_bits(self) -> u32 {
        if self.four().is_some() {
            96
        } else {
            0
        }
    }
}

/// Values of networks, to find that of the longest prefix: one look-up for each length.
pub struct Networks<T> {
    /// By the mask of their prefixes, the longest first.
    by_mask: Vec<(u128, HashMap<u128, T, OurNumbers>)>,
}

impl<T: Copy> Networks<T> {
    /// Gives the network of all addresses that share the first `length` bits with `address` a value; None removes it.
    pub fn set(&mut self, address: Address, length: u32, value: Option<T>) {
        let mask = mask(address.shared_bits() + length);
        let at = self.by_mask.partition_point(|(longer, _)| *longer > mask);
        if self.by_mask.get(at).map(|(known, _)| *known) != Some(mask) {
            self.by_mask.insert(at, (mask, HashMap::default()));
        }
        let networks = &mut self.by_mask[at].1;
        match value {
            Some(value) => drop(networks.insert(address.0 & mask, value)),
            None => drop(networks.remove(&(address.0 & mask))),
        }
        if networks.is_empty() {
            self.by_mask.remove(at);
        }
    }

    /// Returns the value of the longest prefix around an address, None if there is none.
    pub fn find(&self, address: Address) -> Option<T> {
        let least = mask(address.shared_bits());
        let of_family = self.by_mask.iter().take_while(|(mask, _)| *mask >= least);
        of_family.filter_map(|(mask, networks)| networks.get(&(address.0 & mask))).next().copied()
    }
}

impl<T> Default for Networks<T> {
    fn default() -> Networks<T> {
        Networks { by_mask: Vec::new() }
    }
}

/// Returns a number of which the first `length` bits are 1.
pub fn mask(length: u32) -> u128 {
    u128::MAX.checked_shl(128 - length).unwrap_or(0)
}

/// Hashes numbers that no client chooses: addresses and networks of the cluster, and identifiers of ours; or few numbers.
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

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        // Fibonacci hashing of each number with those before; the map takes its high and its low bits.
        let product = (self.0.rotate_left(32) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }

    fn write_u128(&mut self, number: u128) {
        self.write_u64((number >> 64) as u64);
        self.write_u64(number as u64);
    }
}
