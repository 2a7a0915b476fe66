//! Addresses → the smallest known network around them.

use std::net::IpAddr;

/// No network here.
const NONE: u32 = u32::MAX;

/// `10.0.0.0/8`: an address and how many of its leading bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Network {
    pub(super) address: IpAddr,
    pub(super) bits: u8,
}

impl Network {
    /// Reads `address/bits`; `None` when it is something else.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits = bits.parse().ok().filter(|bits| digits && *bits <= Self::width(address))?;
        Some(Self { address, bits })
    }

    /// Whether only leading bits are set.
    pub(super) fn is_whole(self) -> bool {
        number(self.address) & self.tail() == 0
    }

    fn width(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }

    /// The bits that do not count.
    fn tail(self) -> u128 {
        let free = u32::from(Self::width(self.address) - self.bits);
        1_u128.checked_shl(free).map_or(u128::MAX, |bit| bit - 1)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Networks and their numbers, cut into ranges that do not overlap: one binary search.
#[derive(Debug, Default)]
pub(super) struct Networks {
    v4: Vec<(u128, u32)>,
    v6: Vec<(u128, u32)>,
}

impl Networks {
    pub(super) fn new(networks: &[(Network, u32)]) -> Self {
        let (v4, v6): (Vec<_>, Vec<_>) =
            networks.iter().partition(|(network, _)| network.address.is_ipv4());
        Self { v4: ranges(v4), v6: ranges(v6) }
    }

    /// The number of the smallest network around `address`. An IPv4 address in IPv6's clothes
    /// (`::ffff:10.0.0.1`) is in the networks of IPv4.
    pub(super) fn find(&self, address: IpAddr) -> Option<u32> {
        let address = address.to_canonical();
        let ranges = if address.is_ipv4() { &self.v4 } else { &self.v6 };
        let behind = ranges.partition_point(|(start, _)| *start <= number(address));
        let (_, value) = ranges.get(behind.checked_sub(1)?)?;
        (*value != NONE).then_some(*value)
    }
}

/// Where ranges start, ascending, and which network holds there.
fn ranges(mut networks: Vec<(Network, u32)>) -> Vec<(u128, u32)> {
    networks.sort_by_key(|(network, _)| (number(network.address), network.bits));
    let mut ranges = Vec::<(u128, u32)>::with_capacity(2 * networks.len());
    let mut emit = |start: u128, value: u32| match ranges.last_mut() {
        Some(last) if last.0 == start => last.1 = value,
        _ => ranges.push((start, value)),
    };
    // The networks around the current place, largest first: the last address and the number.
    let mut around = Vec::<(u128, u32)>::new();
    let mut leave = |around: &mut Vec<(u128, u32)>, before: Option<u128>| {
        while let Some((end, _)) = around.last().copied()
            && before.is_none_or(|before| end < before)
        {
            around.pop();
            let outer = around.last().map_or(NONE, |(_, value)| *value);
            if let Some(next) = end.checked_add(1) {
                emit(next, outer);
            }
        }
        before
    };
    let mut starts = Vec::new();
    for (network, value) in networks {
        let start = number(network.address);
        leave(&mut around, Some(start));
        around.push((start | network.tail(), value));
        starts.push((start, value));
    }
    leave(&mut around, None);
    ranges
}
