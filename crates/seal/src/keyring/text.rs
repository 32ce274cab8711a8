//! The text form of a ring.

use std::fmt;

use crate::cipher::TAG_LEN;
use crate::keyring::cost::PassphraseCost;
use crate::keyring::error::KeyringError;
use crate::keyring::recipient::{Hex, KEY_LEN, Kind, Recipient, Wrapped, parameters};
use crate::keyring::ring::{Keyring, epoch_head};

const FIRST_LINE: &str = "tollgate keyring 1";
/// What a damaged or hostile ring can make a program read.
const TEXT_MAX: usize = 1 << 20;

impl Keyring {
    /// Reads what [`Keyring`]'s `Display` wrote.
    ///
    /// # Errors
    /// With the line that is wrong.
    pub fn parse(text: &str) -> Result<Keyring, KeyringError> {
        let problem = |line, problem: String| KeyringError::Line { line, problem };
        if text.len() > TEXT_MAX {
            return Err(problem(1, format!("{} bytes; {TEXT_MAX} at most", text.len())));
        }
        let mut lines = text.lines().enumerate();
        if lines.next().map(|(_, line)| line) != Some(FIRST_LINE) {
            return Err(problem(1, format!("not `{FIRST_LINE}`")));
        }
        let mut ring = Keyring { recipients: Vec::new(), epochs: Vec::new() };
        for (index, line) in lines {
            ring.record(line).map_err(|text| problem(index + 1, text))?;
        }
        Ok(ring)
    }

    fn record(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["passphrase", name, memory, passes, lanes, salt, nonce, wrapped] => {
                let cost = PassphraseCost {
                    memory_kib: number(memory)?,
                    passes: number(passes)?,
                    lanes: number(lanes)?,
                };
                parameters(cost).map_err(|error| error.to_string())?;
                self.recipient(name, Kind::Passphrase(cost), salt, nonce, wrapped)
            }
            ["key-file", name, salt, nonce, wrapped] => {
                self.recipient(name, Kind::KeyFile, salt, nonce, wrapped)
            }
            ["epoch", epoch, nonce, wrapped] => {
                let epoch = number(epoch)?;
                if epoch <= self.epoch() {
                    return Err(format!("epoch {epoch} does not follow epoch {}", self.epoch()));
                }
                self.epochs.push((epoch, read_wrapped(nonce, wrapped)?));
                Ok(())
            }
            _ => Err(format!("`{}` is no record with its fields", words[0])),
        }
    }

    fn recipient(
        &mut self,
        name: &str,
        kind: Kind,
        salt: &str,
        nonce: &str,
        wrapped: &str,
    ) -> Result<(), String> {
        if name.is_empty() || self.recipients().any(|other| other == name) {
            return Err(format!("recipient `{name}` stands twice, or has no name"));
        }
        let (salt, wrapped) = (hex(salt)?, read_wrapped(nonce, wrapped)?);
        self.recipients.push(Recipient { name: name.to_owned(), kind, salt, wrapped });
        Ok(())
    }
}

impl fmt::Display for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FIRST_LINE}")?;
        for recipient in &self.recipients {
            writeln!(f, "{} {}", recipient.head(), recipient.wrapped)?;
        }
        for (epoch, wrapped) in &self.epochs {
            writeln!(f, "{} {wrapped}", epoch_head(*epoch))?;
        }
        Ok(())
    }
}

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", Hex(&self.nonce), Hex(&self.key), Hex(&self.tag))
    }
}

fn read_wrapped(nonce: &str, wrapped: &str) -> Result<Wrapped, String> {
    let both: [u8; KEY_LEN + TAG_LEN] = hex(wrapped)?;
    let (mut key, mut tag) = ([0; KEY_LEN], [0; TAG_LEN]);
    key.copy_from_slice(&both[..KEY_LEN]);
    tag.copy_from_slice(&both[KEY_LEN..]);
    Ok(Wrapped { nonce: hex(nonce)?, key, tag })
}

fn hex<const N: usize>(text: &str) -> Result<[u8; N], String> {
    let wrong = || format!("`{text:.20}` is not {} hexadecimal digits", 2 * N);
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return Err(wrong());
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let (high, low) = digit(pair[0]).zip(digit(pair[1])).ok_or_else(wrong)?;
        *byte = high << 4 | low;
    }
    Ok(bytes)
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text:.20}` is not a number"))
}
