//! The client's address, behind proxies that are trusted.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use axum::http::HeaderMap;

/// The other end of a connection.
pub type Peer = SocketAddr;

/// The networks of the proxies whose `X-Forwarded-For` is believed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<(IpAddr, u8)>);

/// A network that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address or a network such as 10.0.0.0/8")]
pub struct TrustedProxiesError(String);

impl TrustedProxies {
    /// Reads addresses and networks (`127.0.0.1`, `10.0.0.0/8`, `fd00::/8`).
    ///
    /// # Errors
    /// Names the one that cannot be read.
    pub fn parse(networks: &[String]) -> Result<Self, TrustedProxiesError> {
        networks.iter().map(|text| read_network(text)).collect::<Result<_, _>>().map(Self)
    }

    /// The client behind `peer`: walking `X-Forwarded-For` from its end, the first address that is no trusted proxy.
    /// Without a peer (no connection, as in tests) it is the unspecified address.
    pub fn client_of(&self, peer: Option<Peer>, headers: &HeaderMap) -> IpAddr {
        let Some(peer) = peer.map(|peer| peer.ip().to_canonical()) else {
            return IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        };
        if !self.trusts(peer) {
            return peer;
        }
        let forwarded: Vec<&str> = headers
            .get_all("x-forwarded-for")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .collect();
        let mut client = peer;
        for text in forwarded.iter().rev() {
            match IpAddr::from_str(text.trim()) {
                Ok(address) => client = address.to_canonical(),
                // What stands further left was written by somebody who does not even know addresses.
                Err(_) => break,
            }
            if !self.trusts(client) {
                break;
            }
        }
        client
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.0.iter().any(|(network, length)| prefix(address, *length) == Some((*network, *length)))
    }
}

fn read_network(text: &str) -> Result<(IpAddr, u8), TrustedProxiesError> {
    let wrong = || TrustedProxiesError(text.to_owned());
    let (address, length) = text.split_once('/').unwrap_or((text, ""));
    let address: IpAddr = address.trim().parse().map_err(|_| wrong())?;
    let whole = if address.is_ipv4() { 32 } else { 128 };
    let length = if length.is_empty() { whole } else { length.trim().parse().map_err(|_| wrong())? };
    prefix(address, length).ok_or_else(wrong)
}

/// The first `length` bits of an address; none if it has fewer.
fn prefix(address: IpAddr, length: u8) -> Option<(IpAddr, u8)> {
    let masked = match address {
        IpAddr::V4(v4) if length <= 32 => {
            IpAddr::V4((u32::from(v4) & u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)).into())
        }
        IpAddr::V6(v6) if length <= 128 => {
            IpAddr::V6((u128::from(v6) & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)).into())
        }
        IpAddr::V4(_) | IpAddr::V6(_) => return None,
    };
    Some((masked, length))
}

/// What counts as one client: an IPv4 address, or an IPv6 /64 (one household has that many addresses).
pub(super) fn network_of(address: IpAddr) -> IpAddr {
    let length = if address.is_ipv4() { 32 } else { 64 };
    prefix(address, length).map_or(address, |(network, _)| network)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(proxies: &[&str], peer: &str, forwarded: &[&str]) -> String {
        let proxies = TrustedProxies::parse(&proxies.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()).unwrap();
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append("x-forwarded-for", value.parse().unwrap());
        }
        proxies.client_of(Some(SocketAddr::new(peer.parse().unwrap(), 1)), &headers).to_string()
    }

    #[test]
    fn only_a_trusted_proxys_word_is_taken() {
        assert_eq!(client(&[], "9.9.9.9", &["1.1.1.1"]), "9.9.9.9");
        assert_eq!(client(&["10.0.0.0/8"], "10.1.2.3", &["1.1.1.1"]), "1.1.1.1");
        assert_eq!(client(&["10.0.0.0/8"], "10.1.2.3", &["6.6.6.6, 1.1.1.1, 10.9.9.9"]), "1.1.1.1");
        assert_eq!(client(&["10.0.0.0/8"], "10.1.2.3", &["6.6.6.6", "1.1.1.1"]), "1.1.1.1");
        assert_eq!(client(&["10.0.0.0/8"], "::ffff:10.1.2.3", &["2001:db8::1"]), "2001:db8::1");
        assert_eq!(client(&["10.0.0.0/8"], "10.1.2.3", &["nonsense"]), "10.1.2.3");
        assert_eq!(client(&["10.0.0.0/8"], "10.1.2.3", &[]), "10.1.2.3");
    }

    #[test]
    fn networks_are_read_strictly() {
        for bad in ["", "10.0.0.0/33", "host", "fd00::/129", "10.0.0.0/x"] {
            assert!(TrustedProxies::parse(&[bad.to_owned()]).is_err(), "{bad}");
        }
        assert!(TrustedProxies::parse(&["0.0.0.0/0".into(), "::/0".into(), "127.0.0.1".into()]).is_ok());
    }

    #[test]
    fn an_ipv6_household_is_one_client() {
        assert_eq!(network_of("2001:db8:1:2:3:4:5:6".parse().unwrap()).to_string(), "2001:db8:1:2::");
        assert_eq!(network_of("1.2.3.4".parse().unwrap()).to_string(), "1.2.3.4");
    }
}
