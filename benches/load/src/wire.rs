//! Requests as bytes, and the check of their replies, in each dialect.
//!
//! Not here: the memcached text (`op`), the RESP requests (`redis`).

use std::collections::VecDeque;

use crate::dialect::Request;
use crate::ledger::Ledger;
use crate::op::Verdict;
use crate::{redis, reply, resp};

impl Request {
    /// Appends one request to `out` and the indices it names to `named`.
    pub fn write(
        self,
        out: &mut Vec<u8>,
        named: &mut VecDeque<u32>,
        ledger: &mut Ledger,
        mut pick: impl FnMut() -> u32,
    ) {
        let first = named.len();
        named.extend((0..self.op.keys()).map(|_| pick()));
        let version = named.get(first).map_or(0, |&index| self.op.note(index, ledger));
        let indices = named.range(first..).copied();
        if self.dialect.is_resp() {
            redis::write_request(self, out, indices, version);
        } else {
            self.op.write(out, indices, version);
        }
    }

    /// Judges the reply at the front of `bytes`; `None` while its end has not arrived. `named` are
    /// the indices of the request that are not yet answered. Also returns the length of the reply.
    pub fn judge(
        self,
        bytes: &[u8],
        named: impl ExactSizeIterator<Item = u32>,
        ledger: &mut Ledger,
    ) -> Option<(Verdict, usize)> {
        if self.dialect.is_resp() {
            let (reply, used) = resp::parse(bytes)?;
            let right = redis::is_right(self, &reply, named, ledger);
            Some((Verdict { right, is_last: true }, used))
        } else {
            let (reply, used) = reply::parse(bytes)?;
            Some((self.op.judge(&reply, named, ledger), used))
        }
    }
}
