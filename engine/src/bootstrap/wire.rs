//! JSON, as in-tree vLLM speaks it, and the fields that are ours.
//!
//! In-tree callers read `engine_id` and `worker_addr` of each entry by name and ignore what else
//! there is, so an entry may say more; the top level may not, since every key of it is a `dp_rank`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use kvferry_proto::Incarnation;
use serde::{Deserialize, Serialize};

use super::registration::{Rank, Registration, Sizes, WorkerAddress};
use super::table::{ListedEngine, ListedWorker, Listing};
use crate::error::Error;

/// Why JSON is no registration, or no listing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BodyError {
    /// It is no JSON, lacks a field, or has one of another type.
    #[error("{0}")]
    Json(String),
    /// A number is outside what any server accepts.
    #[error("{field} is {found}: it must be {least} to {most}")]
    Number {
        /// The field.
        field: &'static str,
        /// Its value.
        found: i64,
        /// The least that is accepted.
        least: u32,
        /// The most that is accepted.
        most: u32,
    },
    /// 0 is no incarnation.
    #[error("incarnation 0 means none: draw a random number from 1 on, or leave it out")]
    Incarnation,
    /// The address is none.
    #[error("addr: {0}")]
    Address(Error),
}

#[derive(Serialize, Deserialize)]
struct RegistrationBody {
    engine_id: String,
    dp_rank: i64,
    tp_rank: i64,
    pp_rank: i64,
    addr: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    incarnation: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dp_size: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tp_size: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pp_size: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct EngineBody {
    engine_id: String,
    worker_addr: BTreeMap<u32, BTreeMap<u32, String>>,
    /// As `worker_addr`, of the workers that gave one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    incarnation: BTreeMap<u32, BTreeMap<u32, u64>>,
}

impl Registration {
    /// Reads the body of `POST /register`. Fields that are not known are ignored.
    ///
    /// # Errors
    /// [`BodyError`] that names the field.
    pub fn from_json(json: &[u8]) -> Result<Self, BodyError> {
        let body: RegistrationBody = parse(json)?;
        let rank = Rank {
            dp: rank("dp_rank", body.dp_rank)?,
            tp: rank("tp_rank", body.tp_rank)?,
            pp: rank("pp_rank", body.pp_rank)?,
        };
        let sizes = Sizes {
            dp: size("dp_size", body.dp_size)?,
            tp: size("tp_size", body.tp_size)?,
            pp: size("pp_size", body.pp_size)?,
        };
        let incarnation = match body.incarnation {
            Some(0) => return Err(BodyError::Incarnation),
            incarnation => incarnation.map(Incarnation),
        };
        Ok(Self {
            engine_id: body.engine_id.into(),
            rank,
            address: body.addr.parse().map_err(BodyError::Address)?,
            incarnation,
            sizes,
            lease: body.lease_ms.map(std::time::Duration::from_millis),
        })
    }

    /// The body of `POST /register`.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let size = |size: Option<NonZeroU32>| size.map(|size| i64::from(size.get()));
        let millis = |lease: std::time::Duration| u64::try_from(lease.as_millis());
        write(&RegistrationBody {
            engine_id: self.engine_id.to_string(),
            dp_rank: self.rank.dp.into(),
            tp_rank: self.rank.tp.into(),
            pp_rank: self.rank.pp.into(),
            addr: self.address.to_string(),
            incarnation: self.incarnation.map(|incarnation| incarnation.0),
            dp_size: size(self.sizes.dp),
            tp_size: size(self.sizes.tp),
            pp_size: size(self.sizes.pp),
            lease_ms: self.lease.map(|lease| millis(lease).unwrap_or(u64::MAX)),
        })
    }
}

impl Listing {
    /// Reads the answer to `GET /query`, of this server or an in-tree one.
    ///
    /// # Errors
    /// [`BodyError`] that names the field.
    pub fn from_json(json: &[u8]) -> Result<Self, BodyError> {
        let body: BTreeMap<u32, EngineBody> = parse(json)?;
        let engines = body.into_iter().map(|(dp, engine)| {
            let mut workers = BTreeMap::<u32, BTreeMap<u32, ListedWorker>>::new();
            for (tp, stages) in engine.worker_addr {
                for (pp, address) in stages {
                    let address = address.parse::<WorkerAddress>().map_err(BodyError::Address)?;
                    let incarnation = engine.incarnation.get(&tp).and_then(|row| row.get(&pp));
                    let incarnation = match incarnation {
                        Some(0) => return Err(BodyError::Incarnation),
                        incarnation => incarnation.copied().map(Incarnation),
                    };
                    let worker = ListedWorker { address, incarnation };
                    workers.entry(tp).or_default().insert(pp, worker);
                }
            }
            Ok((dp, ListedEngine { engine_id: engine.engine_id.into(), workers }))
        });
        Ok(Self { engines: engines.collect::<Result<_, _>>()? })
    }

    /// The answer to `GET /query`.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let engines = self.engines.iter().map(|(dp, engine)| {
            let mut worker_addr = BTreeMap::<u32, BTreeMap<u32, String>>::new();
            let mut incarnation = BTreeMap::<u32, BTreeMap<u32, u64>>::new();
            for (tp, stages) in &engine.workers {
                for (pp, worker) in stages {
                    let address = worker.address.to_string();
                    worker_addr.entry(*tp).or_default().insert(*pp, address);
                    if let Some(known) = worker.incarnation {
                        incarnation.entry(*tp).or_default().insert(*pp, known.0);
                    }
                }
            }
            let engine_id = engine.engine_id.to_string();
            (*dp, EngineBody { engine_id, worker_addr, incarnation })
        });
        write(&engines.collect::<BTreeMap<_, _>>())
    }
}

fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, BodyError> {
    serde_json::from_slice(json).map_err(|error| BodyError::Json(error.to_string()))
}

fn write<T: Serialize>(body: &T) -> Vec<u8> {
    // Writing to memory fails only for maps whose keys are neither strings nor numbers.
    serde_json::to_vec(body).expect("the keys of all bodies are strings and numbers")
}

fn rank(field: &'static str, found: i64) -> Result<u32, BodyError> {
    let most = u32::MAX - 1;
    match u32::try_from(found) {
        Ok(rank) if rank <= most => Ok(rank),
        _ => Err(BodyError::Number { field, found, least: 0, most }),
    }
}

fn size(field: &'static str, found: Option<i64>) -> Result<Option<NonZeroU32>, BodyError> {
    let Some(found) = found else { return Ok(None) };
    let size = u32::try_from(found).ok().and_then(NonZeroU32::new);
    size.map(Some).ok_or(BodyError::Number { field, found, least: 1, most: u32::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(json: &str) -> String {
        Registration::from_json(json.as_bytes()).unwrap_err().to_string()
    }

    fn with(field: &str) -> String {
        format!(
            "{{\"engine_id\":\"e\",\"dp_rank\":0,\"tp_rank\":1,\"pp_rank\":2,\
             \"addr\":\"tcp://10.0.0.1:5\",{field}}}"
        )
    }

    #[test]
    fn what_in_tree_workers_send_is_understood_and_what_they_may_add_ignored() {
        let json = with("\"future\":{\"deep\":[[[null]]]},\"lease_ms\":null");
        let registration = Registration::from_json(json.as_bytes()).unwrap();
        let expected =
            Registration::new("e", Rank { dp: 0, tp: 1, pp: 2 }, registration.address.clone());
        assert_eq!(registration, expected);
        assert_eq!(registration.address.to_string(), "tcp://10.0.0.1:5");
    }

    #[test]
    fn a_registration_comes_back_as_it_was_written() {
        let json = with(
            "\"incarnation\":18446744073709551615,\"dp_size\":1,\"tp_size\":2,\"pp_size\":4294967295,\
             \"lease_ms\":15000",
        );
        let registration = Registration::from_json(json.as_bytes()).unwrap();
        assert_eq!(registration.incarnation, Some(Incarnation(u64::MAX)));
        assert_eq!(Registration::from_json(&registration.to_json()).unwrap(), registration);
        let plain = Registration { incarnation: None, lease: None, ..registration };
        let plain = Registration { sizes: Sizes::default(), ..plain };
        let json = String::from_utf8(plain.to_json()).unwrap();
        let expected = "{\"engine_id\":\"e\",\"dp_rank\":0,\"tp_rank\":1,\"pp_rank\":2,\
                        \"addr\":\"tcp://10.0.0.1:5\"}";
        assert_eq!(json, expected, "in-tree servers get the fields that they know");
    }

    #[test]
    fn what_is_no_registration_is_refused_by_the_name_of_the_field() {
        assert_eq!(reason("{}"), "missing field `engine_id` at line 1 column 2");
        assert!(reason("").contains("EOF"));
        assert!(reason("[1]").contains("invalid type"));
        assert!(reason(&with("\"dp_rank\":1")).contains("duplicate field `dp_rank`"));
        let rank = |rank: &str| reason(&with("\"x\":0").replace("\"tp_rank\":1", rank));
        assert_eq!(rank("\"tp_rank\":-1"), "tp_rank is -1: it must be 0 to 4294967294");
        assert!(rank("\"tp_rank\":4294967295").starts_with("tp_rank is 4294967295: it must be"));
        assert!(rank("\"tp_rank\":1.5").contains("floating point `1.5`"));
        assert!(rank("\"tp_rank\":\"1\"").contains("expected i64"));
        assert_eq!(reason(&with("\"dp_size\":0")), "dp_size is 0: it must be 1 to 4294967295");
        assert!(reason(&with("\"incarnation\":0")).starts_with("incarnation 0 means none"));
        assert!(reason(&with("\"incarnation\":-1")).contains("expected u64"));
        let address = |text: &str| reason(&with("\"x\":0").replace("tcp://10.0.0.1:5", text));
        assert!(address("tcp://0.0.0.0:5").starts_with("addr: \"tcp://0.0.0.0:5\" is no address"));
        assert!(address("tcp://h:65536").contains("the port is not a number from 0 to 65535"));
    }

    #[test]
    fn a_listing_is_what_in_tree_callers_read() {
        let json = "{\"0\":{\"engine_id\":\"e\",\"worker_addr\":{\"0\":{\"0\":\"tcp://10.0.0.1:5\",\
                    \"1\":\"tcp://[::1]:6\"},\"10\":{\"0\":\"tcp://w:7\"}}}}";
        let listing = Listing::from_json(json.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(listing.to_json()).unwrap(), json);
        let named = json.replace("}}}}", "}},\"incarnation\":{\"0\":{\"1\":9}},\"x\":1}}");
        let listing = Listing::from_json(named.as_bytes()).unwrap();
        let workers = &listing.engines[&0].workers;
        assert_eq!(workers[&0][&1].incarnation, Some(Incarnation(9)));
        assert_eq!(workers[&0][&0].incarnation, None);
        assert_eq!(String::from_utf8(listing.to_json()).unwrap(), named.replace(",\"x\":1", ""));
        assert_eq!(Listing::from_json(b"{}").unwrap().to_json(), b"{}");
        for bad in ["{\"-1\":{}}", "{\"0\":{\"engine_id\":\"e\"}}", "[]", "{\"error\":\"x\"}"] {
            Listing::from_json(bad.as_bytes()).unwrap_err();
        }
    }
}
