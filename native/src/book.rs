// SPDX-License-Identifier: Apache-2.0

//! Where addresses are: what `AddressBook` and `JoinedBook` of Python say, by the same rules.

use std::collections::HashMap;

use crate::address::{Address, Networks, OurNumbers};

/// A client's place: the numbers of its location and of its origin, as metrics tell it; whether it forwards; whether
/// anything locates it.
#[derive(Clone, Copy)]
#[cfg_attr(not(fuzzing), derive(pyo3::FromPyObject))]
pub struct Place {
    pub location: u32,
    pub origin: u32,
    pub forwarder: bool,
    pub located: bool,
}

/// The places of one cluster: of addresses that an object holds, and of pod CIDRs.
#[derive(Default)]
struct Cluster {
    four: HashMap<u32, Place, OurNumbers>,
    six: HashMap<u128, Place, OurNumbers>,
    pod_cidrs: Networks<Place>,
}

pub struct Book {
    /// First the own one.
    clusters: Vec<Cluster>,
    subnets: Networks<Place>,
    forwarders: Networks<()>,
    unknown: Place,
}

impl Book {
    /// Sets what the configuration says: subnets, the networks of trusted forwarders, and the place of all others.
    pub fn configure(&mut self, subnets: Networks<Place>, forwarders: Networks<()>, unknown: Place) {
        (self.subnets, self.forwarders, self.unknown) = (subnets, forwarders, unknown);
    }

    /// Sets the place of an address in a cluster; None if no object there holds it any more.
    pub fn set_place(&mut self, cluster: usize, address: Address, place: Option<Place>) {
        let Cluster { four, six, .. } = self.cluster(cluster);
        match (address.four(), place) {
            (Some(address), Some(place)) => drop(four.insert(address, place)),
            (Some(address), None) => drop(four.remove(&address)),
            (None, Some(place)) => drop(six.insert(address.0, place)),
            (None, None) => drop(six.remove(&address.0)),
        }
    }

    /// Sets the place of a pod CIDR of a cluster, None if it has it no more.
    pub fn set_pod_cidr(&mut self, cluster: usize, address: Address, length: u32, place: Option<Place>) {
        self.cluster(cluster).pod_cidrs.set(address, length, place);
    }

    /// Returns the place of a packet's source; `forwarder` says whether it asks on behalf of other clients.
    pub fn source(&self, address: Address) -> Place {
        match self.clusters[0].held(address) {
            Some(place) => place,
            None if self.forwarders.find(address).is_some() => Place { forwarder: true, ..self.unknown },
            None => self.locate_unheld(address),
        }
    }

    /// Returns the place of an address.
    pub fn locate(&self, address: Address) -> Place {
        self.clusters[0].held(address).unwrap_or_else(|| self.locate_unheld(address))
    }

    /// Returns the place of an address that no object of the own cluster holds.
    fn locate_unheld(&self, address: Address) -> Place {
        if let Some(place) = self.clusters[0].pod_cidrs.find(address) {
            return place;
        }
        let mut others = self.clusters[1..].iter().filter_map(|other| other.find(address));
        match (others.next(), others.next()) {
            (None, _) => self.subnets.find(address).unwrap_or(self.unknown),
            (Some(place), None) => place,
            (Some(_), Some(_)) => self.unknown, // nobody can tell whose it is
        }
    }

    fn cluster(&mut self, number: usize) -> &mut Cluster {
        while self.clusters.len() <= number {
            self.clusters.push(Cluster::default());
        }
        &mut self.clusters[number]
    }
}

impl Default for Book {
    fn default() -> Book {
        Book {
            clusters: vec![Cluster::default()],
            subnets: Networks::default(),
            forwarders: Networks::default(),
            unknown: Place { location: 0, origin: 0, forwarder: false, located: false },
        }
    }
}

impl Cluster {
    fn held(&self, address: Address) -> Option<Place> {
        match address.four() {
            Some(four) => self.four.get(&four),
            None => self.six.get(&address.0),
        }
        .copied()
    }

    fn find(&self, address: Address) -> Option<Place> {
        self.held(address).or_else(|| self.pod_cidrs.find(address))
    }
}
