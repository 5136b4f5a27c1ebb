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
    /// `smtp://host?tls=required` (STARTTLS), `smtp://host:25` (neither). A user and a password never
    /// go without TLS: with them the last form is refused, and so is `?tls=opportunistic`.
    pub fn smtp<'a>(
        url: &str,
        from: &str,
        to: impl IntoIterator<Item = &'a str>,
    ) -> Result<Mail, MailError> {
        Mail::new(url, None, from, to)
    }

    /// The same server, with a user and a password that are not in the URL.
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
        // The URL may hold a password, so it is not repeated.
        let bad = || MailError::new("the server's URL must begin with smtp:// or smtps://");
        let parsed = url::Url::parse(url).map_err(|_| bad())?;
        let mut transport = SmtpTransport::from_url(url).map_err(|_| bad())?;
        let secret = credentials.is_some() || parsed.password().is_some();
        if secret && !is_encrypted(&parsed) {
            return Err(MailError::new(
                "a user and a password are not sent without TLS: begin the URL with smtps://, or \
                 end it with ?tls=required",
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
            return Err(MailError::new("nobody to send to was given"));
        }
        let transport = transport.timeout(Some(TIME_OUT)).build();
        Ok(Mail { transport, from: mailbox(from)?, to })
    }
}

/// Whether nothing is said before the connection is encrypted.
fn is_encrypted(url: &url::Url) -> bool {
    let tls = url.query_pairs().find(|(name, _)| name == "tls");
    url.scheme() == "smtps" || tls.is_some_and(|(_, value)| value == "required")
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
