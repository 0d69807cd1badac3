//! What users ask for, against what there is.

use kvferry_engine::topology::{Pairing, SelectionError, Topology};

use crate::expect::{assert_verdicts, topology, verdict};

#[test]
fn a_partition_key_that_is_asked_for_is_used_where_it_names_a_partition() {
    let found = topology("unusable-devices", &[("MC_PKEY_INDEX", "1")]);
    let line = |name: &str| {
        let port = found.ports.iter().find(|port| port.name.to_string() == name);
        verdict(&found, port.expect("a port"))
    };
    assert_eq!(
        line("ibp2:1"),
        "ibp2:1: GID 0 fe80::b83f:d203:e2:8bb2, fe80:0000:0000:0000 partition 0x0003, 0x8003"
    );
    assert!(line("ibp1:1").contains("partition key 0x0000 at index 1 names no partition"));
    assert!(line("ibp3:1").contains("no partition key at index 1, the table has 1"));
}

#[test]
fn a_gid_index_that_is_asked_for_wins_and_is_checked() {
    for variable in ["KVFERRY_RDMA_GID_INDEX", "MC_GID_INDEX", "NCCL_IB_GID_INDEX"] {
        let found = topology("gid-choices", &[(variable, "1")]);
        let line = |name: &str| {
            let port = found.ports.iter().find(|port| port.name.to_string() == name);
            verdict(&found, port.expect("a port"))
        };
        assert!(line("fabric10:1").starts_with("fabric10:1: GID 1 fe80::"), "{variable}");
        assert_eq!(
            line("onlyv1:1"),
            format!(
                "onlyv1:1: not used: GID index 1 asked for by {variable}: that entry is empty, the \
                 first that is not is 0"
            )
        );
    }
    let beyond = topology("two-mtus", &[("MC_GID_INDEX", "16")]);
    assert_verdicts(
        &beyond,
        &["mlx5_0", "mlx5_1"]
            .map(|name| {
                format!(
                    "{name}:1: not used: GID index 16 asked for by MC_GID_INDEX: the table has 16 \
                     entries"
                )
            })
            .each_ref()
            .map(String::as_str),
    );
    let v1 = topology("two-mtus", &[("MC_GID_INDEX", "2")]);
    assert!(verdict(&v1, &v1.ports[0]).contains("GID index 2 speaks RoCE v1"));
    let v2 = topology("two-mtus", &[]);
    let mixed = Pairing::new(v1.endpoints(), v2.endpoints()).expect("devices").pairs();
    assert!(mixed.expect_err("v1 and v2").to_string().contains("one speaks RoCE v1, the other v2"));
}

#[test]
fn a_list_of_devices_is_taken_as_given_and_each_is_checked() {
    for variable in ["KVFERRY_RDMA_DEVICES", "MOONCAKE_DEVICE", "MC_TE_FILTERS", "MC_MS_FILTERS"] {
        let found = topology("two-rails-16-adapters", &[(variable, "mlx5_6, mlx5_1:1")]);
        assert_eq!(found.errors, []);
        let used: Vec<_> = found.endpoints().iter().map(|end| end.name.to_string()).collect();
        assert_eq!(used, ["mlx5_1:1", "mlx5_6:1"]);
        let other = verdict(&found, &found.ports[0]);
        assert_eq!(other, format!("mlx5_0:1: not used: not among the devices of {variable}"));
    }
    let found = topology(
        "unusable-devices",
        &[("KVFERRY_RDMA_DEVICES", "mlx5_0,mlx5_1,mlx5_3,mlx5_9,mlx5_0:2")],
    );
    let errors: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
    let present = "; there are ibp1, ibp2, ibp3, ibp4, ibp5, ibp6, irdma0, mlx5_0 and 4 more";
    assert_eq!(
        errors,
        [
            "KVFERRY_RDMA_DEVICES lists mlx5_1, which cannot be used: node type 7: unspecified, \
             not a channel adapter"
                .to_owned(),
            "KVFERRY_RDMA_DEVICES lists mlx5_3, which cannot be used: the port is DOWN, not \
             ACTIVE: check cable, switch port and, on InfiniBand, the subnet manager"
                .to_owned(),
            format!("KVFERRY_RDMA_DEVICES lists mlx5_9, and there is no such device{present}"),
            format!("KVFERRY_RDMA_DEVICES lists mlx5_0:2, and there is no such device{present}"),
        ]
    );
}

#[test]
fn a_list_by_gpu_gives_a_process_the_devices_of_its_gpus() {
    let list = "mlx5_0,mlx5_0,mlx5_10,mlx5_12";
    let of = |gpus| {
        let variables = [("KVFERRY_RDMA_DEVICES_BY_GPU", list), ("CUDA_VISIBLE_DEVICES", gpus)];
        topology("two-rails-16-adapters", &variables)
    };
    let used = |found: &Topology| -> Vec<_> {
        found.endpoints().iter().map(|end| end.name.to_string()).collect()
    };
    assert_eq!(used(&of("0,1")), ["mlx5_0:1"]);
    assert_eq!(used(&of("3,1")), ["mlx5_0:1", "mlx5_12:1"]);
    assert_eq!(used(&of("GPU-5f2c")), ["mlx5_0:1", "mlx5_10:1", "mlx5_12:1"]);
    let short = of("4");
    assert!(matches!(short.errors[..], [SelectionError::GpuNotListed { listed: 4, .. }]));
    assert_eq!(short.endpoints(), []);
}

#[test]
fn patterns_of_nccl_choose_and_exclude_devices() {
    let with = |patterns| topology("two-rails-16-adapters", &[("NCCL_IB_HCA", patterns)]);
    assert_eq!(with("mlx5_1").endpoints().len(), 9, "mlx5_1 and mlx5_10 to mlx5_17");
    assert_eq!(with("=mlx5_1").endpoints().len(), 1);
    let excluded = with("^mlx5_1,mlx4");
    assert_eq!(excluded.endpoints().len(), 7);
    assert_eq!(
        excluded.unheeded.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["NCCL_IB_HCA excludes mlx4, and there is no such device"]
    );
    assert!(matches!(with("mlx4").errors[..], [SelectionError::NoSuchDevice { .. }]));
    assert!(matches!(with("^mlx5").errors[..], [SelectionError::NothingLeft { .. }]));
}

#[test]
fn a_port_that_is_asked_for_is_the_only_one_of_its_adapter() {
    let found = topology("two-mtus", &[("MC_IB_PORT", "2")]);
    assert!(verdict(&found, &found.ports[0]).ends_with("not used: MC_IB_PORT asks for port 2"));
    let named = topology("two-mtus", &[("MC_IB_PORT", "2"), ("MOONCAKE_DEVICE", "mlx5_0:1")]);
    assert_eq!(named.endpoints().len(), 1, "a port that is named is meant");
}

#[test]
fn a_wish_that_leaves_no_port_is_an_error_and_one_that_leaves_some_is_not() {
    for (host, variable, value) in [
        ("two-mtus", "MC_GID_INDEX", "16"),
        ("two-mtus", "MC_IB_PORT", "2"),
        ("two-mtus", "NCCL_IB_HCA", "^mlx5"),
        ("infiniband-two-subnets", "MC_PKEY_INDEX", "1"),
    ] {
        let found = topology(host, &[(variable, value)]);
        let [SelectionError::NothingLeft { from, .. }] = found.errors[..] else {
            panic!("{variable}={value}: {:?}", found.errors);
        };
        assert_eq!(from.0, variable);
    }
    assert_eq!(topology("gid-choices", &[("MC_GID_INDEX", "3")]).errors, []);
    assert_eq!(topology("unusable-devices", &[("MC_PKEY_INDEX", "1")]).errors, []);
}
