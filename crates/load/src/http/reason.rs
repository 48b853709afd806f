//! Why connections are not made, in words, with the option that helps where there is one.

use rustix::io::Errno;
use rustls::{AlertDescription, CertificateError};

pub(super) const REFUSED: &str =
    "connection refused (ECONNREFUSED): nothing listens at that address and port, or a firewall rejects it";
pub(super) const RESET: &str =
    "reset while it was being made (ECONNRESET): the server, or something before it, does not want it";
pub(super) const UNANSWERED: &str =
    "no answer (ETIMEDOUT): nobody has that address, or a firewall drops what is sent there";
pub(super) const LATE: &str = "no connection within --timeout: nobody answers at that address, a firewall drops what is sent there, or the server accepts too slowly";
pub(super) const CLOSED_IN_HANDSHAKE: &str =
    "the server closed the connection in the TLS handshake: does it speak TLS at that port?";
pub(super) const NO_PORT: &str =
    "no local port is free: --ports gives the link more of them, --sources more addresses";
pub(super) const UNREACHABLE: &str = "unreachable: an ICMP message says so";
pub(super) const NOT_BEGUN: &str = "the stack could not begin it";

/// Of the kernel's answer to connect() or bind(), where that is none of a kind of its own.
pub(super) fn of_errno(errno: Errno) -> &'static str {
    match errno {
        Errno::ADDRNOTAVAIL => {
            "no local port is free, or the address is not this machine's (EADDRNOTAVAIL): --sources gives more addresses, net.ipv4.ip_local_port_range more ports"
        }
        Errno::ADDRINUSE => {
            "the local port is in use (EADDRINUSE): --sources gives more addresses, net.ipv4.ip_local_port_range more ports"
        }
        Errno::NETUNREACH => "network unreachable (ENETUNREACH): no route leads there",
        Errno::HOSTUNREACH => "no route to host (EHOSTUNREACH): nobody has that address, or a router refuses",
        Errno::ACCESS | Errno::PERM => "not permitted (EACCES, EPERM): a firewall of this machine rejects it",
        Errno::NOBUFS | Errno::NOMEM => "the kernel has no memory for it (ENOBUFS, ENOMEM)",
        _ => "the kernel could not make it",
    }
}

/// Of what went wrong with the TLS handshake: an alert that came, or what is wrong with what the server sent.
pub(super) fn of_tls(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(error) => of_certificate(error),
        rustls::Error::InvalidMessage(_) => "what the server sends is no TLS: try http:// instead",
        rustls::Error::AlertReceived(alert) => of_alert(*alert),
        rustls::Error::PeerIncompatible(_) => {
            "no TLS version or cipher suite in common: the generator speaks TLS 1.2 and 1.3"
        }
        _ => "the TLS handshake failed: the server does not keep to the protocol",
    }
}

fn of_certificate(error: &CertificateError) -> &'static str {
    match error {
        CertificateError::UnknownIssuer => {
            "the server's certificate is signed by nobody that is trusted here: --ca-file FILE names its issuer, --insecure takes any certificate"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the server's certificate is for another name than the URL's: --insecure takes any certificate"
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate has expired, or is not valid yet: --insecure takes any certificate"
        }
        _ => "the server's certificate is not a good one: --insecure takes any certificate",
    }
}

/// Alerts by their names in RFC 8446 section 6.2.
fn of_alert(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            "the server refused the handshake (alert handshake_failure): no cipher suite or key exchange in common"
        }
        AlertDescription::ProtocolVersion => {
            "the server refused the handshake (alert protocol_version): it speaks neither TLS 1.2 nor 1.3"
        }
        AlertDescription::CertificateRequired | AlertDescription::BadCertificate => {
            "the server wants a certificate of the client's (alert certificate_required), and the generator has none"
        }
        AlertDescription::UnrecognisedName => {
            "the server has no such name (alert unrecognized_name): the URL's host must be one that it serves"
        }
        AlertDescription::InternalError => {
            "the server failed in the handshake (alert internal_error): its log may say why"
        }
        _ => "the server ended the handshake with an alert: its log may say why",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_helped_names_the_option() {
        for (error, option) in [
            (rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer), "--ca-file FILE"),
            (rustls::Error::InvalidCertificate(CertificateError::NotValidForName), "--insecure"),
            (rustls::Error::InvalidCertificate(CertificateError::Expired), "--insecure"),
            (rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType), "http://"),
            (rustls::Error::AlertReceived(AlertDescription::ProtocolVersion), "TLS 1.2"),
            (rustls::Error::AlertReceived(AlertDescription::CertificateRequired), "certificate_required"),
        ] {
            assert!(of_tls(&error).contains(option), "{error}");
        }
        assert!(of_errno(Errno::ADDRNOTAVAIL).contains("--sources"));
        assert!(of_errno(Errno::NETUNREACH).contains("ENETUNREACH"));
    }
}
