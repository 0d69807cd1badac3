//! Wishes in the environment: our own variables, and those of the engines that people come from.
//!
//! | wish | variables, the strongest first |
//! |---|---|
//! | devices | `KVFERRY_RDMA_DEVICES`, `KVFERRY_RDMA_DEVICES_BY_GPU`, `MOONCAKE_DEVICE`, `MC_TE_FILTERS`, `MC_MS_FILTERS`, `NCCL_IB_HCA` |
//! | GID | `KVFERRY_RDMA_GID_INDEX`, `MC_GID_INDEX`, `NCCL_IB_GID_INDEX` |
//! | partition key | `KVFERRY_RDMA_PKEY_INDEX`, `MC_PKEY_INDEX`, `NCCL_IB_PKEY` |
//! | port | `KVFERRY_RDMA_PORT`, `MC_IB_PORT` |

use kvferry_transport::rdma::device::{GidIndex, GpuIndex, PKeyIndex, PortNumber};

use super::{DeviceList, Source, Unheeded, WishError, Wished, Wishes};

type Parse<T> = fn(Source, &str) -> Result<Option<T>, WishError>;

const DEVICES: [(Source, Parse<DeviceList>); 6] = [
    (Source("KVFERRY_RDMA_DEVICES"), DeviceList::parse_names),
    (Source("KVFERRY_RDMA_DEVICES_BY_GPU"), DeviceList::parse_by_gpu),
    (Source("MOONCAKE_DEVICE"), DeviceList::parse_names),
    (Source("MC_TE_FILTERS"), DeviceList::parse_names),
    (Source("MC_MS_FILTERS"), DeviceList::parse_names),
    (Source("NCCL_IB_HCA"), DeviceList::parse_patterns),
];

const GID_INDEX: [(Source, Parse<GidIndex>); 3] = [
    (Source("KVFERRY_RDMA_GID_INDEX"), gid_index),
    (Source("MC_GID_INDEX"), gid_index),
    (Source("NCCL_IB_GID_INDEX"), gid_index),
];

const PKEY_INDEX: [(Source, Parse<PKeyIndex>); 3] = [
    (Source("KVFERRY_RDMA_PKEY_INDEX"), pkey_index),
    (Source("MC_PKEY_INDEX"), pkey_index),
    (Source("NCCL_IB_PKEY"), pkey_index),
];

const PORT: [(Source, Parse<PortNumber>); 2] =
    [(Source("KVFERRY_RDMA_PORT"), port), (Source("MC_IB_PORT"), port)];

/// Variables that choose devices elsewhere and do not here. They are told about where they are set.
const NOT_OURS: [(Source, &str); 6] = [
    (Source("NCCL_IB_DISABLE"), "it speaks of NCCL's own traffic"),
    (Source("NCCL_IB_ADDR_FAMILY"), "GIDs are ranked by reach; name an index to force one"),
    (Source("NCCL_IB_ADDR_RANGE"), "GIDs are ranked by reach; name an index to force one"),
    (Source("NCCL_IB_ROCE_VERSION_NUM"), "only RoCE v2 is chosen; name an index to force v1"),
    (Source("MC_CUSTOM_TOPO_JSON"), "distances are read from the PCIe tree; list devices by GPU"),
    (Source("MC_NIC_PEER_AFFINITY"), "ports of two hosts are paired by reach"),
];

const VISIBLE_GPUS: Source = Source("CUDA_VISIBLE_DEVICES");

impl Wishes {
    /// What the environment asks for; `variable` looks one up.
    ///
    /// # Errors
    /// [`WishError`] for a value that says nothing. A value that says something impossible is
    /// found when the topology is chosen.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, WishError> {
        let mut unheeded = Vec::new();
        let devices = strongest(&variable, &DEVICES, &mut unheeded)?;
        let gid_index = strongest(&variable, &GID_INDEX, &mut unheeded)?;
        let pkey_index = strongest(&variable, &PKEY_INDEX, &mut unheeded)?;
        let port = strongest(&variable, &PORT, &mut unheeded)?;
        for (from, why) in NOT_OURS {
            if let Some(value) = variable(from.0).filter(|value| !value.trim().is_empty()) {
                unheeded.push(Unheeded::NotOurs { from, value, why });
            }
        }
        let gpus = variable(VISIBLE_GPUS.0).and_then(|value| visible_gpus(value, &mut unheeded));
        Ok(Self { devices, gid_index, pkey_index, port, gpus, unheeded })
    }
}

/// Every variable is parsed, so that nonsense is found in a weak one, too; the first that asks
/// for something wins.
fn strongest<T>(
    variable: &impl Fn(&str) -> Option<String>,
    candidates: &[(Source, Parse<T>)],
    unheeded: &mut Vec<Unheeded>,
) -> Result<Option<Wished<T>>, WishError> {
    let mut winner: Option<Wished<T>> = None;
    for (from, parse) in candidates {
        let Some(text) = variable(from.0) else { continue };
        let Some(value) = parse(*from, &text)? else { continue };
        match &winner {
            None => winner = Some(Wished { value, from: *from }),
            Some(winner) => {
                let (from, winner) = (*from, winner.from);
                unheeded.push(Unheeded::Overridden { from, value: text, winner });
            }
        }
    }
    Ok(winner)
}

/// `None` where the text is empty or -1: "choose".
fn index(from: Source, text: &str, expected: &'static str) -> Result<Option<u16>, WishError> {
    let text = text.trim();
    if text.is_empty() || text == "-1" {
        return Ok(None);
    }
    let number =
        text.parse().map_err(|_| WishError::Number { from, value: text.to_owned(), expected });
    number.map(Some)
}

fn gid_index(from: Source, text: &str) -> Result<Option<GidIndex>, WishError> {
    let expected = "an index in a table of GIDs: 0 to 65535, or -1 to have one chosen";
    Ok(index(from, text, expected)?.map(GidIndex))
}

fn pkey_index(from: Source, text: &str) -> Result<Option<PKeyIndex>, WishError> {
    let expected = "an index in a table of partition keys: 0 to 65535, or -1 to have one chosen";
    Ok(index(from, text, expected)?.map(PKeyIndex))
}

fn port(from: Source, text: &str) -> Result<Option<PortNumber>, WishError> {
    let expected = "a port's number: 1 to 255";
    let bad = || WishError::Number { from, value: text.trim().to_owned(), expected };
    match index(from, text, expected)?.map(u8::try_from) {
        None => Ok(None),
        Some(Ok(number)) if number > 0 => Ok(Some(PortNumber(number))),
        Some(_) => Err(bad()),
    }
}

/// Numbers only: which GPU a UUID means, only CUDA can say.
fn visible_gpus(value: String, unheeded: &mut Vec<Unheeded>) -> Option<Vec<GpuIndex>> {
    let numbers: Result<Vec<u32>, _> = value.split(',').map(|entry| entry.trim().parse()).collect();
    match numbers {
        Ok(numbers) => Some(numbers.into_iter().map(GpuIndex).collect()),
        Err(_) => {
            let why = "only numbers say which physical GPUs are meant without asking CUDA";
            unheeded.push(Unheeded::NotOurs { from: VISIBLE_GPUS, value, why });
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(variables: &[(&str, &str)]) -> Result<Wishes, WishError> {
        Wishes::from_environment(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn an_empty_environment_asks_for_nothing() {
        assert_eq!(wishes(&[]), Ok(Wishes::default()));
        let unset = [("MC_GID_INDEX", "-1"), ("NCCL_IB_GID_INDEX", ""), ("MOONCAKE_DEVICE", " ")];
        assert_eq!(wishes(&unset), Ok(Wishes::default()));
    }

    #[test]
    fn the_stronger_variable_wins_and_the_weaker_is_told_about() {
        let found = wishes(&[("NCCL_IB_GID_INDEX", "1"), ("MC_GID_INDEX", "3")]).expect("wishes");
        let wish = found.gid_index.expect("a wish");
        assert_eq!((wish.value, wish.from.0), (GidIndex(3), "MC_GID_INDEX"));
        let [Unheeded::Overridden { from, winner, .. }] = &found.unheeded[..] else {
            panic!("one gives way: {:?}", found.unheeded);
        };
        assert_eq!((from.0, winner.0), ("NCCL_IB_GID_INDEX", "MC_GID_INDEX"));
    }

    #[test]
    fn values_that_say_nothing_are_errors_that_name_variable_and_value() {
        for (name, value) in [
            ("MC_GID_INDEX", "-5"),
            ("MC_GID_INDEX", "three"),
            ("NCCL_IB_GID_INDEX", "1e3"),
            ("KVFERRY_RDMA_GID_INDEX", "65536"),
            ("MC_PKEY_INDEX", "0x1"),
            ("NCCL_IB_PKEY", "50%"),
            ("MC_IB_PORT", "0"),
            ("MC_IB_PORT", "256"),
            ("NCCL_IB_HCA", "mlx5_0,,mlx5_1"),
            ("MOONCAKE_DEVICE", "mlx5_0:0"),
        ] {
            let error = wishes(&[(name, value)]).expect_err(value).to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }

    #[test]
    fn nonsense_in_a_weaker_variable_is_found_all_the_same() {
        assert!(wishes(&[("KVFERRY_RDMA_GID_INDEX", "3"), ("MC_GID_INDEX", "x")]).is_err());
    }

    #[test]
    fn variables_that_speak_to_others_are_told_about() {
        let found = wishes(&[("NCCL_IB_DISABLE", "1"), ("CUDA_VISIBLE_DEVICES", "GPU-5f2c")]);
        let unheeded = found.expect("wishes").unheeded;
        let told: Vec<_> = unheeded.iter().map(ToString::to_string).collect();
        assert!(told[0].contains("NCCL_IB_DISABLE") && told[1].contains("GPU-5f2c"), "{told:?}");
    }

    #[test]
    fn the_gpus_of_a_process_are_its_visible_ones() {
        let found = wishes(&[("CUDA_VISIBLE_DEVICES", "4, 5")]).expect("wishes");
        assert_eq!(found.gpus, Some(vec![GpuIndex(4), GpuIndex(5)]));
    }
}
