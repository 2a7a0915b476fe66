//! The value of `-l`: addresses to listen on.
//!
//! Here: the grammar of one `-l` value, and its meaning once the port of `-p` is known. Not here:
//! the default addresses (`resolve`), resolving names and binding (`listener`). Source: memcached,
//! `-l` and `doc/tls.txt`, and the behaviour of 1.6.18 in the corner cases.

use std::fmt;
use std::net::Ipv6Addr;

/// Maximum length of a listener's label, in characters (memcached: "between 1 and 8 characters").
const LABEL_CHARS_MAX: usize = 8;

/// One address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddr {
    /// A name or an address without brackets, or [`ListenAddr::ANY`].
    pub host: String,
    /// TCP port; 0 lets the system choose.
    pub port: u16,
    /// The label of `tag[label]`, which names this listener in logs and metrics.
    pub label: Option<String>,
}

impl ListenAddr {
    /// Every interface, IPv4 and IPv6. A family that the machine does not support is no error.
    pub const ANY: &'static str = "*";
}

/// Prints the address in the form that `-l` accepts.
impl fmt::Display for ListenAddr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(label) = &self.label {
            write!(out, "tag[{label}]:")?;
        }
        if self.host.contains(':') {
            write!(out, "[{}]:{}", self.host, self.port)
        } else {
            write!(out, "{}:{}", self.host, self.port)
        }
    }
}

/// The addresses of one `-l`, with or without a port of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ListenList(Vec<Spec>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Spec {
    host: String,
    port: Option<u16>,
    label: Option<String>,
}

impl ListenList {
    /// Parses a list separated by `,` or `;`. Empty parts are skipped, as in memcached. A list of
    /// empty parts only is refused; memcached would start and listen nowhere.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let specs: Vec<_> = text
            .split([',', ';'])
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(Spec::parse)
            .collect::<Result<_, _>>()?;
        if specs.is_empty() { Err("expected an address".to_owned()) } else { Ok(Self(specs)) }
    }

    /// Like [`ListenList::parse`], for peer addresses, which have no prefixes.
    pub(super) fn parse_plain(text: &str) -> Result<Self, String> {
        let parts = text.split([',', ';']).map(str::trim).filter(|part| !part.is_empty());
        let spec = |part| {
            let (host, port) = host_and_port(part)?;
            Ok::<_, String>(Spec { host: host.to_owned(), port, label: None })
        };
        let specs: Vec<_> = parts.map(spec).collect::<Result<_, _>>()?;
        if specs.is_empty() { Err("expected an address".to_owned()) } else { Ok(Self(specs)) }
    }

    /// The addresses, with `port` for those without a port.
    pub(super) fn resolve(&self, port: u16) -> impl Iterator<Item = ListenAddr> + '_ {
        self.0.iter().map(move |spec| ListenAddr {
            host: spec.host.clone(),
            port: spec.port.unwrap_or(port),
            label: spec.label.clone(),
        })
    }
}

impl Spec {
    fn parse(text: &str) -> Result<Self, String> {
        let (label, address) = strip_prefixes(text)?;
        let (host, port) = host_and_port(address)?;
        Ok(Self { host: host.to_owned(), port, label })
    }
}

/// Parses `host`, `host:port` or `[v6]:port`; the host may be [`ListenAddr::ANY`], the port 0.
///
/// # Errors
///
/// The reason, in words for the operator: another form, or a port above 65535.
pub fn host_and_port(address: &str) -> Result<(&str, Option<u16>), String> {
    let (host, port) = split_port(address)?;
    let known = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
    let plain = !host.is_empty() && !host.starts_with('-') && host.chars().all(known);
    if !plain && host != ListenAddr::ANY {
        return Err(format!("\"{address}\" is not host, host:port or [v6]:port"));
    }
    Ok((host, port.map(explicit_port).transpose()?))
}

/// Removes the prefixes `notls:`, `proto[...]:` and `tag[...]:`, in any order, and returns the
/// label and the rest.
fn strip_prefixes(text: &str) -> Result<(Option<String>, &str), String> {
    let mut label = None;
    let mut rest = text;
    loop {
        if let Some(tail) = rest.strip_prefix("notls:") {
            rest = tail;
        } else if ["mtls:", "btls:", "tls:"].iter().any(|prefix| rest.starts_with(prefix)) {
            return Err("TLS is not built yet; write the address without its prefix".to_owned());
        } else if let Some((name, tail)) = bracketed(rest, "proto[")? {
            match name {
                "ascii" | "auto" | "negotiating" => rest = tail,
                "binary" => {
                    return Err("proto[binary] is not built yet; use proto[ascii]".to_owned());
                }
                _ => return Err(format!("proto[{name}] is not spoken; use proto[ascii]")),
            }
        } else if let Some((name, tail)) = bracketed(rest, "tag[")? {
            let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
            if !(1..=LABEL_CHARS_MAX).contains(&name.len()) || !plain {
                return Err(format!(
                    "Listener tags must be between 1 and 8 characters (letters, digits, \
                     dash, dot, underscore): \"{name}\""
                ));
            }
            label = Some(name.to_owned());
            rest = tail;
        } else {
            return Ok((label, rest));
        }
    }
}

/// Splits `open` + name + `]:` + rest into name and rest. `None` if `text` does not begin with
/// `open`.
fn bracketed<'t>(text: &'t str, open: &str) -> Result<Option<(&'t str, &'t str)>, String> {
    let Some(tail) = text.strip_prefix(open) else { return Ok(None) };
    tail.split_once("]:").map(Some).ok_or_else(|| format!("{open} lacks its ]:"))
}

/// Splits host and port. A bare IPv6 address is a host, because its colons are ambiguous.
fn split_port(address: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(tail) = address.strip_prefix('[') {
        let (host, tail) = tail.split_once(']').ok_or("[ lacks its ]")?;
        if !is_v6(host) {
            return Err(format!("Invalid IPV6 address: \"{host}\""));
        }
        return match tail.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if tail.is_empty() => Ok((host, None)),
            None => Err(format!("\"{tail}\" after ] is not a :port")),
        };
    }
    if is_v6(address) {
        return Ok((address, None));
    }
    match address.rsplit_once(':') {
        Some((host, _)) if host.contains(':') => {
            Err(format!("\"{address}\" is not an address; IPv6 with a port is [v6]:port"))
        }
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((address, None)),
    }
}

/// Whether `text` is an IPv6 address, perhaps with a scope (`fe80::1%eth0`).
fn is_v6(text: &str) -> bool {
    text.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

/// Parses the port of an address: 0 and -1 both let the system choose, as in memcached 1.6.18.
fn explicit_port(text: &str) -> Result<u16, String> {
    let text = text.trim();
    if text == "-1" {
        return Ok(0);
    }
    text.parse().map_err(|_| format!("Invalid port number: \"{text}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The printed addresses of `text`, with port 11211 from `-p`.
    fn read(text: &str) -> Result<String, String> {
        let list = ListenList::parse(text)?;
        Ok(list.resolve(11211).map(|addr| addr.to_string()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn every_form_of_an_address_is_read() {
        for (written, expected) in [
            ("127.0.0.1", "127.0.0.1:11211"),
            ("127.0.0.1,::1", "127.0.0.1:11211 [::1]:11211"),
            (" 127.0.0.1 ; localhost:1 ", "127.0.0.1:11211 localhost:1"),
            (",127.0.0.1,", "127.0.0.1:11211"),
            ("*", "*:11211"),
            ("*:7", "*:7"),
            ("[::1]", "[::1]:11211"),
            ("[::1]:65535", "[::1]:65535"),
            ("fe80::1%eth0", "[fe80::1%eth0]:11211"),
            ("host:0", "host:0"),
            ("host:-1", "host:0"),
            ("notls:127.0.0.1:5", "127.0.0.1:5"),
            ("proto[ascii]:tag[x]:127.0.0.1:5", "tag[x]:127.0.0.1:5"),
            ("tag[ab-cd_ef]:proto[auto]:[::1]:5", "tag[ab-cd_ef]:[::1]:5"),
        ] {
            assert_eq!(read(written).as_deref(), Ok(expected), "{written}");
        }
    }

    #[test]
    fn printed_addresses_read_back() {
        let printed = read("tag[a]:[::1]:1,*:2,h").expect("a good list");
        assert_eq!(read(&printed.replace(' ', ",")), Ok(printed));
    }

    #[test]
    fn unsupported_prefixes_are_refused() {
        for (written, part) in [
            ("mtls:127.0.0.1:5", "TLS is not built yet"),
            ("btls:127.0.0.1:5", "TLS is not built yet"),
            ("tag[x]:mtls:127.0.0.1:5", "TLS is not built yet"),
            ("proto[binary]:127.0.0.1:5", "proto[binary]"),
            ("proto[proxy]:127.0.0.1:5", "proto[proxy]"),
            ("tag[]:h", "between 1 and 8"),
            ("tag[abcdefghi]:h", "between 1 and 8"),
            ("tag[x:h", "lacks its ]"),
            ("h:", "Invalid port number"),
            ("h:65536", "Invalid port number"),
            ("h:http", "Invalid port number"),
            (":11211", "is not host"),
            ("::1:18208:x", "[v6]:port"),
            ("[::1", "lacks its ]"),
            ("[::1]5", "not a :port"),
            ("[nonsense]:5", "Invalid IPV6"),
            ("a b", "is not host"),
            ("http://h", "Invalid port number"),
            ("-d", "is not host"),
            ("", "expected an address"),
            (" ,; ", "expected an address"),
        ] {
            let reason = read(written).expect_err(written);
            assert!(reason.contains(part), "{written}: {reason}");
        }
    }
}
