//! TLS between a party and its stack, for the servers that want it.
//!
//! The party sends and receives what it always does; here its stream becomes records and records become its stream. rustls
//! does no I/O, so the same code serves kernel sockets and the user-level stack. Plain connections beside secure ones cost
//! an empty place.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::Settings;
use super::outgoing::Pieces;
use super::party::{ClientStack, Party, Why};
use super::reason;
use super::tally::Outcome;
use crate::error::Error;

/// Where systems keep the certificates that they trust.
const SYSTEM_BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// Plaintext taken from rustls at once: a record's most (RFC 8446 section 5.1).
const RECORD: usize = 16 * 1024;

/// What secure connections are made from: the same for all threads.
#[derive(Debug, Clone)]
pub(crate) struct Security {
    config: Arc<ClientConfig>,
    /// By server: its name, if it wants TLS.
    names: Vec<Option<ServerName<'static>>>,
}

impl Security {
    /// For servers of these names; `None` where none of them wants TLS.
    pub(crate) fn new<'n>(
        settings: &Settings,
        names: impl Iterator<Item = Option<&'n str>>,
    ) -> Result<Option<Security>, Error> {
        let name = |name: Option<&str>| {
            let wrong =
                |_| Error::usage("URL", name.unwrap_or_default(), "a host that a certificate could name");
            name.map(|name| ServerName::try_from(name.to_string()).map_err(wrong)).transpose()
        };
        let names = names.map(name).collect::<Result<Vec<_>, Error>>()?;
        if names.iter().all(Option::is_none) {
            return Ok(None);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::machine("preparing TLS", error))?;
        let mut config = if settings.insecure {
            let anything = Arc::new(AnyCertificate { provider });
            builder.dangerous().with_custom_certificate_verifier(anything).with_no_client_auth()
        } else {
            builder.with_root_certificates(roots(settings)?).with_no_client_auth()
        };
        // Each connection pays for a handshake of its own: sessions taken up again would hide what most clients cost.
        config.resumption = Resumption::disabled();
        Ok(Some(Security { config: Arc::new(config), names }))
    }
}

/// The certificates that a server's may be signed by.
fn roots(settings: &Settings) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let system = || SYSTEM_BUNDLES.into_iter().map(std::path::PathBuf::from).find(|path| path.exists());
    let Some(path) = settings.ca_file.clone().or_else(system) else {
        let advice = "name a file of certificates with --ca-file, or take any with --insecure";
        return Err(Error::machine("no certificates that this system trusts were found", advice));
    };
    let shown = path.display();
    let wrong =
        |why: String| Error::usage("--ca-file", &shown, format!("a file of certificates in PEM ({why})"));
    for certificate in CertificateDer::pem_file_iter(&path).map_err(|error| wrong(error.to_string()))? {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        // Systems trust a few that are too old for rustls; what is asked for must be good.
        let added = roots.add(certificate);
        if settings.ca_file.is_some() {
            added.map_err(|error| wrong(error.to_string()))?;
        }
    }
    if roots.is_empty() {
        return Err(wrong("there is none in it".to_string()));
    }
    Ok(roots)
}

/// Takes any certificate, but not a signature that is not the certificate's.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// One secure connection.
struct Channel {
    tls: ClientConnection,
    /// The party has been told that it is open.
    opened: bool,
    /// Plaintext that the party promised and that is not encrypted yet, and how far its stream is.
    promised: usize,
    plain_offset: u64,
    /// Records that may have to be sent again.
    records: Pieces,
    /// Stands in `Tls::noted`.
    noted: bool,
    /// It cannot go on: to be reset.
    broken: bool,
}

/// A party whose connections are secure where their servers want it.
pub(crate) struct Tls<P> {
    party: P,
    security: Security,
    /// By slot; `None` for a plain connection.
    channels: Vec<Option<Box<Channel>>>,
    /// Channels with something to do once the stack can be called.
    noted: Vec<usize>,
    plain: Vec<u8>,
}

impl<P: Party> Tls<P> {
    pub(crate) fn new(party: P, security: Security) -> Tls<P> {
        Tls { party, security, channels: Vec::new(), noted: Vec::new(), plain: vec![0; RECORD] }
    }

    fn note(&mut self, slot: usize) {
        if let Some(channel) = self.channels.get_mut(slot).and_then(Option::as_deref_mut)
            && !channel.noted
        {
            channel.noted = true;
            self.noted.push(slot);
        }
    }

    fn has_channel(&self, slot: usize) -> bool {
        self.channels.get(slot).is_some_and(Option::is_some)
    }

    /// Takes records in, and gives the party what they hold.
    fn read(&mut self, slot: usize, mut data: &[u8]) {
        while !data.is_empty() {
            let Some(channel) = self.channels[slot].as_deref_mut().filter(|channel| !channel.broken) else {
                return;
            };
            let taken = channel.tls.read_tls(&mut data).unwrap_or(0);
            let processed = channel.tls.process_new_packets();
            let is_open = !channel.tls.is_handshaking();
            if let Err(error) = &processed {
                self.break_off(slot, is_open, reason::of_tls(error));
                return;
            }
            if taken == 0 {
                self.break_off(slot, is_open, reason::of_tls(&rustls::Error::HandshakeNotComplete));
                return;
            }
            if is_open && !channel.opened {
                channel.opened = true;
                self.party.opened(slot);
            }
            self.deliver(slot);
        }
        self.note(slot);
    }

    fn deliver(&mut self, slot: usize) {
        while let Some(channel) = self.channels[slot].as_deref_mut() {
            match channel.tls.reader().read(&mut self.plain) {
                Ok(read @ 1..) => self.party.received(slot, &self.plain[..read]),
                // The peer's close_notify: the stream ends, whether a FIN follows or not.
                Ok(_) => return self.party.ended(slot),
                Err(_) => return,
            }
        }
    }

    /// What came is no TLS that we could go on with: a reset follows.
    fn break_off(&mut self, slot: usize, was_open: bool, words: &'static str) {
        if let Some(channel) = self.channels[slot].as_deref_mut() {
            channel.broken = true;
        }
        self.party.failed(slot, if was_open { Why::Other(words) } else { Why::Untrusted(words) });
        self.note(slot);
    }

    /// Encrypts what the party has promised, and promises the records to the stack.
    fn write(&mut self, slot: usize, stack: &mut impl ClientStack) {
        let Some(channel) = self.channels[slot].as_deref_mut() else { return };
        channel.noted = false;
        while channel.promised > 0 && !channel.broken {
            let bytes = self.party.stream(slot, channel.plain_offset);
            let take = bytes.len().min(channel.promised);
            let written = channel.tls.writer().write(&bytes[..take]).unwrap_or(0);
            channel.promised -= written;
            channel.plain_offset += written as u64;
            channel.move_records(slot, stack);
            if written == 0 {
                break;
            }
        }
        if channel.promised == 0 {
            self.party.acknowledged(slot, channel.plain_offset);
        }
        channel.move_records(slot, stack);
        if channel.broken {
            self.channels[slot] = None;
            reset(stack, slot, &mut self.party);
        }
    }
}

/// Resets a connection that the party knows to have failed.
fn reset<C: ClientStack>(stack: &mut C, slot: usize, party: &mut impl Party) {
    stack.reset(slot);
    if C::GONE_AT_ONCE {
        party.released(slot);
    }
}

impl Channel {
    fn move_records(&mut self, slot: usize, stack: &mut impl ClientStack) {
        let mut records = Vec::new();
        while self.tls.wants_write() && self.tls.write_tls(&mut records).is_ok_and(|written| written > 0) {}
        if !records.is_empty() {
            stack.send(slot, records.len());
            self.records.push(Rc::from(records));
        }
    }
}

/// What the party asks for, on its way to the stack.
struct Between<'a, C> {
    stack: &'a mut C,
    security: &'a Security,
    channels: &'a mut Vec<Option<Box<Channel>>>,
    noted: &'a mut Vec<usize>,
}

impl<C: ClientStack> ClientStack for Between<'_, C> {
    const GONE_AT_ONCE: bool = C::GONE_AT_ONCE;

    fn connect(&mut self, server: usize) -> Result<usize, Why> {
        let tls = match &self.security.names[server] {
            Some(name) => {
                let made = ClientConnection::new(self.security.config.clone(), name.clone());
                Some(made.map_err(|error| Why::Untrusted(reason::of_tls(&error)))?)
            }
            None => None,
        };
        let slot = self.stack.connect(server)?;
        if self.channels.len() <= slot {
            self.channels.resize_with(slot + 1, || None);
        }
        self.channels[slot] = tls.map(|tls| {
            Box::new(Channel {
                tls,
                opened: false,
                promised: 0,
                plain_offset: 0,
                records: Pieces::default(),
                noted: false,
                broken: false,
            })
        });
        Ok(slot)
    }

    fn send(&mut self, slot: usize, bytes: usize) {
        let Some(channel) = self.channels.get_mut(slot).and_then(Option::as_deref_mut) else {
            self.stack.send(slot, bytes);
            return;
        };
        channel.promised += bytes;
        if !channel.noted {
            channel.noted = true;
            self.noted.push(slot);
        }
    }

    fn close(&mut self, slot: usize) {
        if let Some(channel) = self.channels.get_mut(slot).and_then(Option::as_deref_mut) {
            // RFC 8446 section 6.1: before we close our side we say so.
            channel.tls.send_close_notify();
            channel.move_records(slot, self.stack);
        }
        self.stack.close(slot);
        self.forget_if_gone(slot);
    }

    fn reset(&mut self, slot: usize) {
        self.stack.reset(slot);
        self.forget_if_gone(slot);
    }

    fn consumed(&mut self, slot: usize, bytes: usize) {
        self.stack.consumed(slot, bytes);
    }
}

impl<C: ClientStack> Between<'_, C> {
    fn forget_if_gone(&mut self, slot: usize) {
        if C::GONE_AT_ONCE && slot < self.channels.len() {
            self.channels[slot] = None;
        }
    }
}

impl<P: Party> Party for Tls<P> {
    fn tell(&mut self, now_ns: u64) {
        self.party.tell(now_ns);
    }

    fn goes_on(&mut self) -> bool {
        self.party.goes_on()
    }

    fn opened(&mut self, slot: usize) {
        if self.has_channel(slot) {
            // The ClientHello is ready; the party hears of the connection when it is secure.
            self.note(slot);
        } else {
            self.party.opened(slot);
        }
    }

    fn received(&mut self, slot: usize, data: &[u8]) {
        if self.has_channel(slot) { self.read(slot, data) } else { self.party.received(slot, data) }
    }

    fn ended(&mut self, slot: usize) {
        let is_handshaking =
            self.channels.get(slot).and_then(Option::as_ref).is_some_and(|channel| !channel.opened);
        if is_handshaking {
            self.break_off(slot, false, reason::CLOSED_IN_HANDSHAKE);
        } else {
            self.party.ended(slot);
        }
    }

    fn failed(&mut self, slot: usize, why: Why) {
        self.party.failed(slot, why);
    }

    fn released(&mut self, slot: usize) {
        if let Some(channel) = self.channels.get_mut(slot) {
            *channel = None;
        }
        self.party.released(slot);
    }

    fn stream(&self, slot: usize, offset: u64) -> &[u8] {
        match self.channels.get(slot).and_then(Option::as_deref) {
            Some(channel) => channel.records.from(offset),
            None => self.party.stream(slot, offset),
        }
    }

    fn acknowledged(&mut self, slot: usize, offset: u64) {
        match self.channels.get_mut(slot).and_then(Option::as_deref_mut) {
            Some(channel) => channel.records.acknowledged(offset),
            None => self.party.acknowledged(slot, offset),
        }
    }

    fn proceed(&mut self, stack: &mut impl ClientStack) -> Result<(), Error> {
        let Tls { party, security, channels, noted, .. } = self;
        party.proceed(&mut Between { stack, security, channels, noted })?;
        while let Some(slot) = self.noted.pop() {
            self.write(slot, stack);
        }
        Ok(())
    }

    fn next_ns(&self) -> u64 {
        self.party.next_ns()
    }

    fn flushed(&mut self, clock: impl FnOnce() -> u64) {
        self.party.flushed(clock);
    }

    fn was_busy(&mut self, ns: u64) {
        self.party.was_busy(ns);
    }

    fn stop(&mut self, now_ns: u64, stack: &mut impl ClientStack) {
        let Tls { party, security, channels, noted, .. } = self;
        party.stop(now_ns, &mut Between { stack, security, channels, noted });
    }

    fn into_outcome(self, counters: BTreeMap<String, u64>) -> Outcome {
        self.party.into_outcome(counters)
    }
}
