//! Alerts by mail.

use std::time::Duration;

use lettre::message::Mailbox;
use lettre::message::header::ContentType;
use lettre::transport::smtp::authentication::Credentials;
use lettre::{Message, SmtpTransport, Transport};

use super::{Alert, Send, SendError};

/// The time-out for one command of the server.
const TIME_OUT: Duration = Duration::from_secs(5);
/// The maximum length of a subject, in characters.
const SUBJECT_MAX: usize = 120;

/// Why a [`Mail`] was not created.
///
/// ```
/// use artel_hub::notify::Mail;
///
/// let server = "smtp://hub:secret@mail.example.org"; // without TLS
/// let error = Mail::smtp(server, "hub@example.org", ["ops@example.org"]).unwrap_err();
/// assert!(error.to_string().contains("not sent without TLS"));
/// assert!(!error.to_string().contains("secret"));
/// ```
#[derive(Debug, thiserror::Error)]
#[error("mail is not set up: {reason}")]
pub struct MailError {
    reason: String,
}

impl MailError {
    fn new(reason: impl std::fmt::Display) -> MailError {
        MailError { reason: reason.to_string() }
    }
}

/// Sends every alert by mail. Give it to [`Notifier::to`](super::Notifier::to).
///
/// ```
/// use artel_hub::EventHub;
/// use artel_hub::notify::{Mail, Notifier};
///
/// let server = "smtps://hub:secret@mail.example.org";
/// let mail = Mail::smtp(server, "hub@example.org", ["ops@example.org"])?;
/// let hub = EventHub::new();
/// let alerts = Notifier::new().to(mail).start(&hub)?; // connects when there is an alert
/// assert_eq!(alerts.name(), "artel-hub/notifier");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Mail {
    transport: SmtpTransport,
    from: Mailbox,
    to: Vec<Mailbox>,
}

impl Mail {
    /// Sends through the server at this URL:
    ///
    /// * `smtps://user:password@host`: TLS
    /// * `smtp://host?tls=required`: STARTTLS
    /// * `smtp://host:25`: no encryption
    ///
    /// A user and a password are never sent without TLS. With them, the last form and
    /// `?tls=opportunistic` are refused.
    pub fn smtp<'a>(
        url: &str,
        from: &str,
        to: impl IntoIterator<Item = &'a str>,
    ) -> Result<Mail, MailError> {
        Mail::new(url, None, from, to)
    }

    /// The same, with a user and a password that are not in the URL.
    pub fn smtp_as<'a>(
        url: &str,
        user: &str,
        password: &str,
        from: &str,
        to: impl IntoIterator<Item = &'a str>,
    ) -> Result<Mail, MailError> {
        let credentials = Credentials::new(user.into(), password.into());
        Mail::new(url, Some(credentials), from, to)
    }

    fn new<'a>(
        url: &str,
        credentials: Option<Credentials>,
        from: &str,
        to: impl IntoIterator<Item = &'a str>,
    ) -> Result<Mail, MailError> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        // The URL may contain a password, so the error does not contain the URL.
        let bad = || MailError::new("the server's URL must begin with smtp:// or smtps://");
        let parsed = url::Url::parse(url).map_err(|_| bad())?;
        let mut transport = SmtpTransport::from_url(url).map_err(|_| bad())?;
        let secret = credentials.is_some() || parsed.password().is_some();
        if secret && !is_encrypted(&parsed) {
            return Err(MailError::new(
                "a user and a password are not sent without TLS: begin the URL with smtps://, or \
                 add the parameter tls=required",
            ));
        }
        if let Some(credentials) = credentials {
            transport = transport.credentials(credentials);
        }
        let mailbox = |text: &str| {
            text.parse::<Mailbox>().map_err(|error| MailError::new(format!("{text:?}: {error}")))
        };
        let to: Vec<Mailbox> = to.into_iter().map(mailbox).collect::<Result<_, _>>()?;
        if to.is_empty() {
            return Err(MailError::new("no recipient was given"));
        }
        let transport = transport.timeout(Some(TIME_OUT)).build();
        Ok(Mail { transport, from: mailbox(from)?, to })
    }
}

/// Whether the connection is encrypted before anything is sent.
fn is_encrypted(url: &url::Url) -> bool {
    let tls = url.query_pairs().find(|(name, _)| name == "tls");
    url.scheme() == "smtps" || tls.is_some_and(|(_, value)| value == "required")
}

impl Send for Mail {
    fn send(&mut self, alert: &Alert) -> Result<(), SendError> {
        let first = alert.text.lines().next().unwrap_or_default();
        let word = if alert.is_resolved { "resolved".into() } else { alert.severity.to_string() };
        let subject: String = format!("[{word}] {}: {first}", alert.source)
            .chars()
            .filter(|c| !c.is_control())
            .take(SUBJECT_MAX)
            .collect();
        let mut message = Message::builder().from(self.from.clone()).subject(subject);
        for to in &self.to {
            message = message.to(to.clone());
        }
        let message = message
            .header(ContentType::TEXT_PLAIN)
            .body(format!("{alert}\n"))
            .map_err(SendError::new)?;
        self.transport.send(&message).map(drop).map_err(SendError::new)
    }
}

impl std::fmt::Debug for Mail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mail").field("to", &self.to.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_never_goes_without_tls() {
        let to = ["you@example.com"];
        let refused = |url: &str| {
            let plain = Mail::smtp(url, "me@example.com", to).map(drop);
            let with = Mail::smtp_as(url, "me", "hunter2", "me@example.com", to).map(drop);
            (plain.is_err(), with.is_err())
        };
        assert_eq!(refused("smtp://h:25"), (false, true));
        assert_eq!(refused("smtp://h?tls=opportunistic"), (false, true));
        assert_eq!(refused("smtp://me:hunter2@h:25"), (true, true));
        assert_eq!(refused("smtp://me:hunter2@h?tls=opportunistic&tls=required"), (true, true));
        assert_eq!(refused("smtp://me:hunter2@h?tls=required"), (false, false));
        assert_eq!(refused("SMTPS://me:hunter2@h"), (false, false));
        let error = Mail::smtp("smtp://me:hunter2@h", "me@example.com", to).expect_err("refused");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
