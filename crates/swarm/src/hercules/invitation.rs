//! A ticket, as whoever makes it has it: which addresses stand in it, how long it lives, how many may use it.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anabranch_hercules::wire::ticket::{ADDRESSES_MAX, KeyPrint, TICKET_PREFIX, TICKET_SECRET_LEN, Ticket};
use anabranch_paths::Endpoint;
use anabranch_transport::{Identity, IdentityError, NodeId};

use super::options::Admission;

/// How far two clocks may be apart: a ticket that is past its time by less may still be good by its maker's clock.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(600);

/// An invitation that is not yet told to anybody.
#[derive(Clone)]
pub struct Invitation {
    holder_sends: bool,
    key: KeyPrint,
    secret: [u8; TICKET_SECRET_LEN],
    /// When it ends.
    pub expires: SystemTime,
    /// How many may come.
    pub times: u16,
}

impl Invitation {
    /// One to whoever has `key`, for the other role.
    pub fn new(
        holder_sends: bool,
        key: &NodeId,
        secret: [u8; TICKET_SECRET_LEN],
        expires: SystemTime,
        times: u16,
    ) -> Self {
        Self { holder_sends, key: KeyPrint::of(key.as_bytes()), secret, expires, times }
    }

    /// Who may come by it.
    pub fn admission(&self) -> Admission {
        Admission { secret: Some(self.secret), times: self.times, expires: Some(self.expires), ..Admission::default() }
    }

    /// The ticket, where its maker is reached at `addresses`; none where that is nowhere.
    pub fn ticket(&self, addresses: &[Endpoint]) -> Option<Ticket> {
        let addresses = useful(addresses);
        let expires = self.expires.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        (!addresses.is_empty()).then(|| Ticket {
            holder_sends: self.holder_sends,
            addresses,
            key: self.key,
            secret: self.secret,
            expires: u32::try_from(expires).unwrap_or(u32::MAX),
        })
    }
}

/// Whether a text is meant for a ticket, right or wrong.
pub fn is_ticket(text: &str) -> bool {
    // Up to the version's digit.
    text.trim().starts_with(&TICKET_PREFIX[..4]) && text.contains('-') && !text.contains(['/', ':', '@', '.'])
}

/// A secret for a ticket.
///
/// # Errors
/// The system has no randomness.
pub fn ticket_secret() -> Result<[u8; TICKET_SECRET_LEN], IdentityError> {
    // A key that is thrown away is as good as the system's randomness: 256 bits of it, seen by nobody else.
    let random = Identity::ephemeral()?;
    let mut secret = [0; TICKET_SECRET_LEN];
    secret.copy_from_slice(&random.secret("bulk ticket")[..TICKET_SECRET_LEN]);
    Ok(secret)
}

/// Why a ticket is of no use to its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UselessTicket {
    /// It is one for sending.
    ForSending,
    /// It is one for receiving.
    ForReceiving,
    /// It expired, so long ago.
    Expired(Duration),
}

/// Whether a ticket may be of use to its holder, before anybody is asked.
///
/// # Errors
/// Why not.
pub fn check_ticket(ticket: &Ticket, holder_sends: bool, now: SystemTime) -> Result<(), UselessTicket> {
    if ticket.holder_sends != holder_sends {
        return Err(if ticket.holder_sends { UselessTicket::ForSending } else { UselessTicket::ForReceiving });
    }
    match now.duration_since(UNIX_EPOCH + Duration::from_secs(ticket.expires.into())) {
        Ok(ago) if ago > CLOCKS_APART_MAX => Err(UselessTicket::Expired(ago)),
        _ => Ok(()),
    }
}

/// Of where we are reached, what is worth a place in a ticket: the loopback and addresses of one link only where there is nothing else,
/// no address twice, SCION in front of what would not fit.
fn useful(addresses: &[Endpoint]) -> Vec<Endpoint> {
    let is_near = |address: &Endpoint| {
        address.as_ip().is_some_and(|address| match address.ip() {
            IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
            // RFC 4291 §2.5.6: means nothing without the interface, which is the reader's.
            IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
        })
    };
    let is_address = |address: &&Endpoint| !address.socket_addr().ip().is_unspecified();
    let mut found: Vec<Endpoint> = Vec::new();
    for address in addresses.iter().filter(is_address) {
        if !found.contains(address) {
            found.push(*address);
        }
    }
    if found.iter().any(|address| !is_near(address)) {
        found.retain(|address| !is_near(address));
    }
    let (scion, mut ip): (Vec<_>, Vec<_>) = found.into_iter().partition(|address| address.as_scion().is_some());
    ip.truncate(ADDRESSES_MAX - scion.len().min(ADDRESSES_MAX));
    ip.into_iter().chain(scion).take(ADDRESSES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(texts: &[&str]) -> Vec<Endpoint> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn near_addresses_stand_in_a_ticket_only_where_there_is_nothing_else() {
        let near = ["127.0.0.1:7", "[::1]:7", "[fe80::1]:7", "169.254.3.4:7"];
        assert_eq!(useful(&endpoints(&near)), endpoints(&near));
        let far = ["192.168.1.7:7", "[2001:db8::7]:7"];
        assert_eq!(useful(&endpoints(&[&near[..], &far[..], &far[..]].concat())), endpoints(&far));
        let scion = ["127.0.0.1:7", "[1-ff00:0:110,127.0.0.9]:7"];
        assert_eq!(useful(&endpoints(&scion)), endpoints(&scion[1..]), "of SCION, the AS says what is near");
        assert_eq!(useful(&endpoints(&["0.0.0.0:7", "[::]:7"])), []);
    }

    #[test]
    fn scion_has_its_place_in_a_ticket_however_many_uplinks_there_are() {
        let mut many: Vec<String> = (1..20).map(|last| format!("192.0.2.{last}:7")).collect();
        many.push("[1-ff00:0:110,10.0.0.9]:7".to_owned());
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let found = useful(&endpoints(&many));
        assert_eq!(found.len(), ADDRESSES_MAX);
        assert_eq!((found[0], found[ADDRESSES_MAX - 1]), (endpoints(&many)[0], endpoints(&many)[19]));
    }

    #[test]
    fn a_ticket_is_of_use_in_its_role_until_all_clocks_agree_that_it_expired() {
        let expires = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let invitation = Invitation::new(true, &NodeId::from_bytes([9; 32]), [5; TICKET_SECRET_LEN], expires, 1);
        let ticket = invitation.ticket(&endpoints(&["192.0.2.7:7"])).unwrap();
        let check = |sends, at: SystemTime| check_ticket(&ticket, sends, at);
        assert_eq!(check(false, UNIX_EPOCH), Err(UselessTicket::ForSending));
        assert_eq!(check(true, expires + CLOCKS_APART_MAX), Ok(()));
        let late = CLOCKS_APART_MAX + Duration::from_secs(1);
        assert_eq!(check(true, expires + late), Err(UselessTicket::Expired(late)));
    }
}
