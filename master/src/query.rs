//! What a request over HTTP asks for: the parameters behind the `?` of its path.

use kvferry_proto::pool::{Key, Tenant};

/// How many keys are listed where a request does not say, and at the most.
pub const LISTED: usize = 1_000_000;

/// How many keys one request may ask about.
pub const QUERIED: usize = 1000;

/// The most bytes of a key of metadata.
pub const METADATA_KEY_BYTES: usize = 4096;

/// The parameters of a request. Of one that is there twice, the first counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Query<'a>(&'a str);

/// Why a request is refused: it is to be shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQuery {
    /// A parameter that has to be there is not.
    #[error("a parameter is missing: {usage}")]
    Missing {
        /// How it is written.
        usage: &'static str,
    },
    /// A name is none.
    #[error(transparent)]
    Name(#[from] kvferry_proto::message::MessageError),
    /// A number is none.
    #[error("limit is a number")]
    Limit,
    /// A key of metadata is empty or too long.
    #[error("a key has 1 to {METADATA_KEY_BYTES} bytes: /metadata?key=KEY")]
    MetadataKey,
}

impl<'a> Query<'a> {
    /// The parameters of a request whose path has this behind its `?`.
    #[must_use]
    pub fn new(query: Option<&'a str>) -> Self {
        Self(query.unwrap_or_default())
    }

    /// The value of a parameter, decoded. `None` where it is not there.
    #[must_use]
    pub fn get(self, name: &str) -> Option<String> {
        let mut pairs = form_urlencoded::parse(self.0.as_bytes());
        pairs.find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
    }

    /// Whose keys are asked for: those of the tenant without a name where `tenant` does not say.
    ///
    /// # Errors
    /// Where it is no name.
    pub fn tenant(self) -> Result<Tenant, BadQuery> {
        Ok(Tenant::new(self.get("tenant").unwrap_or_default())?)
    }

    /// The object that is asked for.
    ///
    /// # Errors
    /// Where none is named, or what is named is no key.
    pub fn key(self) -> Result<Key, BadQuery> {
        let key = self.get("key").ok_or(BadQuery::Missing { usage: "/query_key?key=KEY" })?;
        Ok(Key::new(key.into_bytes())?)
    }

    /// The objects that are asked for, [`QUERIED`] at the most: those that are no keys as they are.
    ///
    /// # Errors
    /// Where none is named.
    pub fn keys(self) -> Result<Vec<(String, Option<Key>)>, BadQuery> {
        let usage = "/batch_query_keys?keys=KEY,KEY";
        let keys = self.get("keys").ok_or(BadQuery::Missing { usage })?;
        let keys = keys.split(',').take(QUERIED);
        Ok(keys.map(|text| (text.to_owned(), Key::try_from(text).ok())).collect())
    }

    /// The segments that are asked for, by their name.
    ///
    /// # Errors
    /// Where none is named.
    pub fn segment(self) -> Result<String, BadQuery> {
        self.get("segment").ok_or(BadQuery::Missing { usage: "/query_segment?segment=NAME" })
    }

    /// How many keys are to be listed: [`LISTED`] at the most.
    ///
    /// # Errors
    /// Where it is no number.
    pub fn limit(self) -> Result<usize, BadQuery> {
        let Some(limit) = self.get("limit") else { return Ok(LISTED) };
        let limit: usize = limit.parse().map_err(|_| BadQuery::Limit)?;
        Ok(limit.min(LISTED))
    }

    /// Whether something is asked for as JSON.
    #[must_use]
    pub fn is_json(self) -> bool {
        self.get("format").as_deref() == Some("json")
    }

    /// Whether something is to be done whatever stands against it.
    #[must_use]
    pub fn force(self) -> bool {
        self.get("force").as_deref() == Some("true")
    }

    /// The key of metadata that is asked for.
    ///
    /// # Errors
    /// Where there is none, or it is too long.
    pub fn metadata_key(self) -> Result<String, BadQuery> {
        let key = self.get("key").filter(|key| (1..=METADATA_KEY_BYTES).contains(&key.len()));
        key.ok_or(BadQuery::MetadataKey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query = Query::new(Some("tenant=&key=m%40tp_rank%3A0%20a%2Bb%22%00+c&key=other"));
        assert_eq!(query.get("key").as_deref(), Some("m@tp_rank:0 a+b\"\0 c"));
        assert_eq!(query.get("tenant").as_deref(), Some(""));
        assert_eq!(query.tenant(), Ok(Tenant::default()));
        assert_eq!(query.get("nothing"), None);
        assert_eq!(Query::new(None).get("key"), None);
    }

    #[test]
    fn what_is_missing_or_no_number_or_no_name_is_an_error_that_says_so() {
        let error = |query: Query<'_>| query.key().unwrap_err().to_string();
        assert!(error(Query::new(None)).contains("/query_key?key=KEY"));
        assert!(error(Query::new(Some("key="))).contains("key"));
        assert_eq!(Query::new(Some("limit=x")).limit(), Err(BadQuery::Limit));
        assert_eq!(Query::new(Some("limit=9999999999")).limit(), Ok(LISTED));
        assert_eq!(Query::new(None).limit(), Ok(LISTED));
        let long = format!("key={}", "k".repeat(METADATA_KEY_BYTES + 1));
        assert_eq!(Query::new(Some(&long)).metadata_key(), Err(BadQuery::MetadataKey));
    }
}
