// SPDX-License-Identifier: Apache-2.0

//! Receives and sends datagrams: one if one waits, many if many wait.

use std::io;
use std::mem;
use std::ptr;

use libc::{c_void, iovec, mmsghdr};

/// Datagrams for each system call, as in `udp.py`.
pub const BATCH: usize = 64;
/// Octets of a query; more is cut off. As in `udp.py`.
const QUERY_SIZE: usize = 1536;
/// Octets for one in_pktinfo or in6_pktinfo with its header.
const CONTROL_SIZE: usize = 64;
const NAME_SIZE: usize = mem::size_of::<libc::sockaddr_in6>();

/// A socket, and what its addresses look like.
#[derive(Clone, Copy)]
pub struct Socket {
    pub fd: i32,
    pub six: bool,
    /// Whether it also receives the address that each datagram was sent to.
    pub wildcard: bool,
}

/// The way back to the sender of a datagram: its address, and the address that it was sent to.
#[derive(Clone)]
#[repr(C, align(8))] // as a control message needs it
pub struct Path {
    control: [u8; CONTROL_SIZE],
    name: [u8; NAME_SIZE],
}

/// The buffers of one socket: slot *i* holds the *i*-th datagram of a batch.
pub struct Batch {
    socket: Socket,
    queries: Vec<[u8; QUERY_SIZE]>,
    paths: Vec<Path>,
    received: Vec<mmsghdr>,
    vectors: Vec<iovec>,
    replies: Vec<Reply>,
    octets: Vec<u8>,
    sent: Vec<mmsghdr>,
    sent_vectors: Vec<iovec>,
}

struct Reply {
    slot: usize,
    end: usize,
}

// The pointers in it lead to its own memory, which does not move.
unsafe impl Send for Batch {}

impl Socket {
    /// Sends datagrams; returns how many the kernel did not take.
    pub fn send<'a>(&self, replies: impl Iterator<Item = (&'a Path, &'a [u8])>) -> u64 {
        let (paths, mut vectors): (Vec<&Path>, Vec<iovec>) = replies
            .map(|(path, octets)| (path, iovec { iov_base: octets.as_ptr() as *mut c_void, iov_len: octets.len() }))
            .unzip();
        let prepared = paths.iter().zip(&mut vectors).map(|(path, vector)| self.header(path, vector));
        self.send_prepared(&mut prepared.collect::<Vec<_>>())
    }

    fn send_prepared(&self, headers: &mut [mmsghdr]) -> u64 {
        let (mut lost, mut first) = (0, 0);
        while first < headers.len() {
            let rest = &mut headers[first..];
            let sent = unsafe { libc::sendmmsg(self.fd, rest.as_mut_ptr(), rest.len() as u32, libc::MSG_DONTWAIT as _) };
            if sent <= 0 {
                lost += 1; // the first of the rest: no route, port 0, or the buffer is full
            }
            first += sent.max(1) as usize;
        }
        lost
    }

    fn header(&self, path: &Path, vector: *mut iovec) -> mmsghdr {
        let mut header: mmsghdr = unsafe { mem::zeroed() };
        header.msg_hdr.msg_name = path.name.as_ptr() as *mut c_void;
        header.msg_hdr.msg_namelen =
            (if self.six { NAME_SIZE } else { mem::size_of::<libc::sockaddr_in>() }) as libc::socklen_t;
        header.msg_hdr.msg_iov = vector;
        header.msg_hdr.msg_iovlen = 1;
        if self.wildcard {
            header.msg_hdr.msg_control = path.control.as_ptr() as *mut c_void;
            header.msg_hdr.msg_controllen = if self.six { 40 } else { 32 };
        }
        header
    }
}

impl Path {
    /// Returns the packed address of the sender, 4 or 16 octets.
    pub fn source(&self, six: bool) -> &[u8] {
        if six {
            &self.name[8..24]
        } else {
            &self.name[4..8]
        }
    }

    /// Removes the interface: else the reply would leave by that of the query, whatever the routing table says.
    fn leave_by_any_interface(&mut self, six: bool) {
        let index = if six { 32 } else { 16 };
        self.control[index..index + 4].fill(0);
    }
}

impl Batch {
    pub fn new(socket: Socket) -> Batch {
        let mut batch = Batch {
            socket,
            queries: vec![[0; QUERY_SIZE]; BATCH],
            paths: vec![Path { control: [0; CONTROL_SIZE], name: [0; NAME_SIZE] }; BATCH],
            received: vec![unsafe { mem::zeroed() }; BATCH],
            vectors: vec![unsafe { mem::zeroed() }; BATCH],
            replies: Vec::with_capacity(BATCH),
            octets: Vec::with_capacity(4096),
            sent: vec![unsafe { mem::zeroed() }; BATCH],
            sent_vectors: vec![unsafe { mem::zeroed() }; BATCH],
        };
        batch.restore(BATCH);
        batch
    }

    /// Waits for a datagram; returns how many have arrived, at most `BATCH`.
    pub fn receive(&mut self) -> io::Result<usize> {
        let headers = self.received.as_mut_ptr();
        let flags = libc::MSG_WAITFORONE as _; // musl has another type for it
        let number = unsafe { libc::recvmmsg(self.socket.fd, headers, BATCH as u32, flags, ptr::null_mut()) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        if self.socket.wildcard {
            for path in &mut self.paths[..number as usize] {
                path.leave_by_any_interface(self.socket.six);
            }
        }
        Ok(number as usize)
    }

    pub fn query(&self, slot: usize) -> &[u8] {
        &self.queries[slot][..self.received[slot].msg_len as usize]
    }

    pub fn path(&self, slot: usize) -> &Path {
        &self.paths[slot]
    }

    /// Lets `write` append a reply to the octets that `send` will send; it returns None to write none.
    pub fn reply(&mut self, slot: usize, write: impl FnOnce(&[u8], &mut Vec<u8>) -> Option<()>) -> Option<()> {
        let query = &self.queries[slot][..self.received[slot].msg_len as usize];
        let start = self.octets.len();
        let written = write(query, &mut self.octets);
        if written.is_none() {
            self.octets.truncate(start);
            return None;
        }
        self.replies.push(Reply { slot, end: self.octets.len() });
        written
    }

    /// Sends the replies; returns how many were lost.
    pub fn send(&mut self) -> u64 {
        let mut start = 0;
        for (index, reply) in self.replies.iter().enumerate() {
            let octets = &self.octets[start..reply.end];
            self.sent_vectors[index] = iovec { iov_base: octets.as_ptr() as *mut c_void, iov_len: octets.len() };
            self.sent[index] = self.socket.header(&self.paths[reply.slot], &mut self.sent_vectors[index]);
            start = reply.end;
        }
        let lost = self.socket.send_prepared(&mut self.sent[..self.replies.len()]);
        self.replies.clear();
        self.octets.clear();
        lost
    }

    /// Prepares the first `number` slots for the next datagrams: the kernel has overwritten the sizes in them.
    pub fn restore(&mut self, number: usize) {
        for slot in 0..number {
            self.vectors[slot] = iovec { iov_base: self.queries[slot].as_mut_ptr().cast(), iov_len: QUERY_SIZE };
            let header = &mut self.received[slot].msg_hdr;
            header.msg_name = self.paths[slot].name.as_mut_ptr().cast();
            header.msg_namelen = NAME_SIZE as libc::socklen_t;
            header.msg_iov = &mut self.vectors[slot];
            header.msg_iovlen = 1;
            if self.socket.wildcard {
                header.msg_control = self.paths[slot].control.as_mut_ptr().cast();
                header.msg_controllen = CONTROL_SIZE;
            }
        }
    }
}
