//! Networks: finds the smallest known network that contains an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Bits of an IPv6 address before the IPv4 address that it may stand for.
const MAPPED_BITS: u8 = 96;

/// No network contains this range.
const NONE: u32 = u32::MAX;

/// `10.0.0.0/8`: an address and its number of significant leading bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Network {
    pub(super) address: IpAddr,
    pub(super) bits: u8,
}

impl Network {
    /// Parses `address/bits`; `None` for any other text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits = bits.parse().ok().filter(|bits| digits && *bits <= Self::width(address))?;
        Some(Self { address, bits })
    }

    /// Whether all insignificant bits are zero.
    pub(super) fn is_whole(self) -> bool {
        number(self.address) & self.tail() == 0
    }

    /// Checks that the network is written so that [`Networks::find`] finds its addresses.
    pub(super) fn check(self) -> Result<(), String> {
        if let IpAddr::V6(address) = self.address
            && let Some(v4) = address.to_ipv4_mapped()
            && let Some(bits) = self.bits.checked_sub(MAPPED_BITS)
        {
            let network = Self { address: v4.into(), bits }.whole();
            return Err(format!("write it as IPv4: {network}"));
        }
        if !self.is_whole() {
            let Self { address, bits } = self;
            let whole = self.whole();
            return Err(format!("{address} has bits set behind the first {bits}: write {whole}"));
        }
        Ok(())
    }

    /// The network of one address.
    pub(super) fn of_one(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, bits: Self::width(address) }
    }

    /// The same network without insignificant bits.
    pub(super) fn whole(self) -> Self {
        let bits = number(self.address) & !self.tail();
        let address = match self.address {
            // The mask has no more bits than the address.
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        };
        Self { address, bits: self.bits }
    }

    /// Whether every address of `other` is one of this network.
    pub(super) fn contains(self, other: Self) -> bool {
        self.address.is_ipv4() == other.address.is_ipv4()
            && self.bits <= other.bits
            && number(self.address) & !self.tail() == number(other.address) & !self.tail()
    }

    fn width(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }

    /// A mask of the insignificant bits.
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

/// Networks and their numbers as ranges that do not overlap, so that a lookup is one binary search.
#[derive(Debug, Default)]
pub(super) struct Networks {
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u32)]>,
}

impl Networks {
    pub(super) fn new(networks: &[(Network, u32)]) -> Self {
        let (v4, v6): (Vec<_>, Vec<_>) =
            networks.iter().partition(|(network, _)| network.address.is_ipv4());
        // Behind the last address of IPv4 there is nothing to find.
        let v4 = ranges(v4).into_iter();
        let v4 = v4.filter_map(|(start, value)| Some((u32::try_from(start).ok()?, value)));
        Self { v4: v4.collect(), v6: ranges(v6).into() }
    }

    /// The number of some network; `None`: there is none.
    pub(super) fn any(&self) -> Option<u32> {
        let v4 = self.v4.iter().map(|(_, value)| *value);
        v4.chain(self.v6.iter().map(|(_, value)| *value)).find(|value| *value != NONE)
    }

    /// The number of the smallest network that contains `address`. An IPv4-mapped IPv6 address
    /// (`::ffff:10.0.0.1`) belongs to the networks of IPv4.
    pub(super) fn find(&self, address: IpAddr) -> Option<u32> {
        let value = match address.to_canonical() {
            IpAddr::V4(address) => range_of(&self.v4, address.to_bits())?,
            IpAddr::V6(address) => range_of(&self.v6, address.to_bits())?,
        };
        (value != NONE).then_some(value)
    }
}

/// The number of the range that contains `address`.
fn range_of<A: Ord + Copy>(ranges: &[(A, u32)], address: A) -> Option<u32> {
    let behind = ranges.partition_point(|(start, _)| *start <= address);
    ranges.get(behind.checked_sub(1)?).map(|(_, value)| *value)
}

/// The starts of all ranges, ascending, each with the number of its network.
fn ranges(mut networks: Vec<(Network, u32)>) -> Vec<(u128, u32)> {
    // This order puts a network before those inside it.
    networks.sort_by_key(|(network, _)| (number(network.address), network.bits));
    let mut ranges = Ranges::default();
    for (network, value) in networks {
        let start = number(network.address);
        ranges.leave(|end| end < start);
        ranges.emit(start, value);
        ranges.around.push((start | network.tail(), value));
    }
    ranges.leave(|_| true);
    ranges.starts
}

#[derive(Default)]
struct Ranges {
    starts: Vec<(u128, u32)>,
    /// The networks around the current address, largest first: the last address and the number of
    /// each.
    around: Vec<(u128, u32)>,
}

impl Ranges {
    fn emit(&mut self, start: u128, value: u32) {
        match self.starts.last_mut() {
            Some(last) if last.0 == start => last.1 = value,
            _ => self.starts.push((start, value)),
        }
    }

    /// Pops the innermost networks while `behind` is true of their last address.
    fn leave(&mut self, behind: impl Fn(u128) -> bool) {
        while let Some((end, _)) = self.around.pop_if(|(end, _)| behind(*end)) {
            let outer = self.around.last().map_or(NONE, |(_, value)| *value);
            if let Some(next) = end.checked_add(1) {
                self.emit(next, outer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(texts: &[&str]) -> Networks {
        let parse = |text: &&str| Network::parse(text).expect("a network");
        Networks::new(&texts.iter().map(parse).zip(0..).collect::<Vec<_>>())
    }

    #[test]
    fn the_smallest_network_around_an_address_is_found() {
        let texts = ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "255.0.0.0/8", "10.255.0.0/16"];
        let networks = networks(&[&texts[..], &["2001:db8::/32", "2001:db8:1::/48"]].concat());
        for (address, expected) in [
            ("9.255.255.255", None),
            ("10.0.0.0", Some(0)),
            ("10.1.0.0", Some(1)),
            ("10.1.2.3", Some(2)),
            ("10.1.2.4", Some(1)),
            ("10.2.0.0", Some(0)),
            ("10.255.255.255", Some(4)),
            ("11.0.0.0", None),
            ("255.255.255.255", Some(3)),
            ("::ffff:10.1.2.3", Some(2)),
            ("2001:db8::1", Some(5)),
            ("2001:db8:1::1", Some(6)),
            ("2001:db9::", None),
            ("::a:0:0", None),
        ] {
            assert_eq!(networks.find(address.parse().expect(address)), expected, "{address}");
        }
    }

    #[test]
    fn a_network_of_no_bits_holds_all_of_its_family() {
        let networks = networks(&["0.0.0.0/0", "::/0"]);
        assert_eq!(networks.find("255.255.255.255".parse().expect("v4")), Some(0));
        assert_eq!(networks.find("ffff::ffff".parse().expect("v6")), Some(1));
    }

    #[test]
    fn a_network_is_an_address_and_bits() {
        for text in ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "::/129", "a/8", "::/+1", "::/"] {
            assert_eq!(Network::parse(text), None, "{text}");
        }
        let check = |text: &str| Network::parse(text).expect("a network").check();
        for text in ["10.0.0.0/8", "::/0", "::ffff:0:0:0/96", "::a00:0/104", "::fffe:0:0/95"] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        for (text, reason) in [
            ("10.0.0.1/8", "10.0.0.1 has bits set behind the first 8: write 10.0.0.0/8"),
            ("::ffff:0.0.0.0/96", "write it as IPv4: 0.0.0.0/0"),
            ("::ffff:10.0.0.1/104", "write it as IPv4: 10.0.0.0/8"),
            ("::FFFF:a00:1/128", "write it as IPv4: 10.0.0.1/32"),
            (
                "::ffff:0:0/95",
                "::ffff:0.0.0.0 has bits set behind the first 95: write ::fffe:0:0/95",
            ),
        ] {
            assert_eq!(check(text), Err(reason.to_owned()));
        }
        assert!(Network::parse("10.0.0.0/8").is_some_and(Network::is_whole));
        assert!(Network::parse("10.0.0.1/8").is_some_and(|network| !network.is_whole()));
    }
}
