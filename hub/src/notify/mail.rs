//! Alerts by mail.

use std::time::Duration;

use lettre::message::Mailbox;
use lettre::message::header::ContentType;
use lettre::transport::smtp::authentication::Credentials;
use lettre::{Message, SmtpTransport, Transport};

use super::{Alert, Send, SendError};

/// How long the server may take for one command.
const TIME_OUT: Duration = Duration::from_secs(5);
/// The longest subject, in characters.
const SUBJECT_MAX: usize = 120;

/// Why no mailer was made.
#[derive(Debug, thiserror::Error)]
#[error("no mail: {reason}")]
pub struct MailError {
    reason: String,
}

impl MailError {
    fn new(reason: impl std::fmt::Display) -> MailError {
        MailError { reason: reason.to_string() }
    }
}

/// Mails every alert.
pub struct Mail {
    transport: SmtpTransport,
    from: Mailbox,
    to: Vec<Mailbox>,
}

impl Mail {
    /// Sends by the server at this URL: `smtps://user:password@host` (TLS),
    /// `smtp://host?tls=required` (STARTTLS), `smtp://host:25` (neither).
    pub fn smtp<'a>(
        url: &str,
        from: &str,
        to: impl IntoIterator<Item = &'a str>,
    ) -> Result<Mail, MailError> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        // The URL may hold a password, so it is not repeated.
        let transport = SmtpTransport::from_url(url)
            .map_err(|_| MailError::new("the server's URL must begin with smtp:// or smtps://"))?;
        let mailbox = |text: &str| {
            text.parse::<Mailbox>().map_err(|error| MailError::new(format!("{text:?}: {error}")))
        };
        let to: Vec<Mailbox> = to.into_iter().map(mailbox).collect::<Result<_, _>>()?;
        if to.is_empty() {
            return Err(MailError::new("nobody to send to was given"));
        }
        let transport = transport.timeout(Some(TIME_OUT)).build();
        Ok(Mail { transport, from: mailbox(from)?, to })
    }

    /// The same server, with a user and a password that are not in the URL.
    pub fn smtp_as<'a>(
        url: &str,
        user: &str,
        password: &str,
        from: &str,
        to: impl IntoIterator<Item = &'a str>,
    ) -> Result<Mail, MailError> {
        let mail = Mail::smtp(url, from, to)?;
        let transport = SmtpTransport::from_url(url)
            .map_err(|_| MailError::new("the server's URL must begin with smtp:// or smtps://"))?
            .credentials(Credentials::new(user.into(), password.into()))
            .timeout(Some(TIME_OUT))
            .build();
        Ok(Mail { transport, ..mail })
    }
}

impl Send for Mail {
    fn send(&mut self, alert: &Alert) -> Result<(), SendError> {
        let first = alert.text.lines().next().unwrap_or_default();
        let subject: String = format!("[{}] {}: {first}", alert.severity, alert.source)
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
