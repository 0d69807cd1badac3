//! The secret that registrants show.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use subtle::ConstantTimeEq as _;

/// The most bytes of a token: it has to fit a header.
const TOKEN_BYTES: usize = 4096;

/// A bearer token (RFC 6750) that a registrant shows and a server compares. It is never shown.
#[derive(Clone)]
pub struct Token(Arc<str>);

/// Why something is no token.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TokenError {
    /// It has no characters.
    #[error("the token is empty: nobody would be kept out")]
    Empty,
    /// It cannot be sent in a header.
    #[error("a token has up to {TOKEN_BYTES} letters, digits and -._~+/=")]
    Malformed,
    /// Its file cannot be read.
    #[error("the token cannot be read from {path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: Arc<io::Error>,
    },
}

impl Token {
    /// A token of its text. White space around it is not part of it.
    ///
    /// # Errors
    /// [`TokenError`] when it is empty, or has characters that cannot be sent.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim_ascii();
        if text.is_empty() {
            return Err(TokenError::Empty);
        }
        // RFC 6750, section 2.1.
        let is_sent = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        if text.len() > TOKEN_BYTES || !text.bytes().all(is_sent) {
            return Err(TokenError::Malformed);
        }
        Ok(Self(text.into()))
    }

    /// The token in a file: all of it, but for white space around it.
    ///
    /// # Errors
    /// [`TokenError`] when it cannot be read, or holds no token.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        let failed = |error| TokenError::File { path: path.into(), source: Arc::new(error) };
        let mut text = String::new();
        // Room for white space, and one more to notice that there is more.
        let most = 2 * TOKEN_BYTES as u64 + 1;
        File::open(path).map_err(failed)?.take(most).read_to_string(&mut text).map_err(failed)?;
        Self::new(&text)
    }

    /// Whether an `Authorization` header shows this token. How long that takes tells nothing of
    /// the token but its length.
    pub(super) fn is_shown_by(&self, header: &[u8]) -> bool {
        // The scheme's case does not matter (RFC 7235, section 2.1).
        let Some((scheme, shown)) = header.split_at_checked("Bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ")
            && shown.trim_ascii().ct_eq(self.0.as_bytes()).into()
    }

    /// The header that shows it.
    pub(super) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_token_is_accepted() {
        let token = Token::new(" abc.123=\n").unwrap();
        assert!(token.is_shown_by(token.header().as_bytes()));
        assert!(token.is_shown_by(b"bearer  abc.123="));
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer abc.123", "Bearer abc.123=x", "Basic abc.123="]
        {
            assert!(!token.is_shown_by(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn an_empty_or_unreadable_token_is_an_error_and_not_open_doors() {
        assert!(matches!(Token::new(" \n"), Err(TokenError::Empty)));
        assert!(matches!(Token::new("a b"), Err(TokenError::Malformed)));
        assert!(matches!(Token::new("a\r\nX: y"), Err(TokenError::Malformed)));
        assert!(matches!(Token::new(&"a".repeat(4097)), Err(TokenError::Malformed)));
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        assert!(matches!(Token::from_file(&file), Err(TokenError::File { .. })));
        std::fs::write(&file, "").unwrap();
        assert!(matches!(Token::from_file(&file), Err(TokenError::Empty)));
        std::fs::write(&file, "secret\n").unwrap();
        assert!(Token::from_file(&file).unwrap().is_shown_by(b"Bearer secret"));
        std::fs::write(&file, "a".repeat(100_000)).unwrap();
        assert!(matches!(Token::from_file(&file), Err(TokenError::Malformed)));
    }
}
