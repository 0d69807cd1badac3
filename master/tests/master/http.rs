//! What people, probes and scrapers are told.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use kv_master::state::Settings;
use serde_json::Value;

use super::client::{Client, SOON, listen, settings, start, stop};

/// Status and body of an answer.
pub(crate) fn ask(at: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

pub(crate) async fn get(at: SocketAddr, path: &str) -> (u16, String) {
    send(at, "GET", path, "").await
}

async fn send(at: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let [method, path, body] = [method, path, body].map(str::to_owned);
    tokio::task::spawn_blocking(move || ask(at, &method, &path, &body)).await.unwrap()
}

#[tokio::test]
async fn any_key_can_be_asked_for_and_the_answer_is_json() {
    let master = start(settings(), listen()).await;
    let at = master.addresses().metrics;
    let mut owner = Client::lend(&master, 1, 1 << 20).await;
    let names = ["m@tp_rank:0@af\"\\\u{1}\n", "a b+c&d=e%41", "ключ/%00", "plain"];
    owner.put_whole(&names, 100).await;
    for name in names {
        let encoded: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let (status, body) = get(at, &format!("/query_key?key={encoded}")).await;
        assert_eq!(status, 200, "{body}");
        let found: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(found["key"], name);
        assert_eq!(found["size"], 100);
        assert_eq!(found["replicas"][0]["segment"], "segment-1");
    }
    assert_eq!(get(at, "/query_key?key=nothing").await.0, 404);
    assert_eq!(get(at, "/query_key?key=plain&tenant=other").await.0, 404);
    assert_eq!(get(at, "/query_key").await.0, 400);
    assert_eq!(get(at, "/nowhere").await.0, 404);
    let (_, both) = get(at, "/batch_query_keys?keys=plain,nothing").await;
    let both: Value = serde_json::from_str(&both).unwrap();
    assert_eq!(both["plain"]["size"], 100);
    assert_eq!(both["nothing"], Value::Null);

    let (status, all) = get(at, "/get_all_keys?format=json").await;
    assert_eq!(status, 200);
    let all: Value = serde_json::from_str(&all).unwrap();
    assert_eq!(all["keys"].as_array().unwrap().len(), names.len());
    assert_eq!(get(at, "/get_all_keys?limit=1").await.1.lines().count(), 1);
    assert_eq!(get(at, "/get_all_segments").await.1, "segment-1\n");
    let (_, segment) = get(at, "/query_segment?segment=segment-1").await;
    // Four objects of 100 bytes, in lines of 64.
    assert_eq!(segment, "segment-1\nUsed(bytes): 512\nCapacity(bytes) : 1048576\n");
    assert_eq!(get(at, "/query_segment?segment=x").await.0, 404);
    let (_, detail) = get(at, "/get_segments_detail").await;
    let detail: Value = serde_json::from_str(&detail).unwrap();
    assert_eq!(detail["segments"][0]["status"], "alive");
    stop(master).await;
}

#[tokio::test]
async fn ready_says_what_it_proves() {
    let master = start(settings(), listen()).await;
    let at = master.addresses().metrics;
    let (status, body) = get(at, "/ready").await;
    assert!(status == 200 && body.contains("no segment is mounted"), "{body}");
    let owner = Client::lend(&master, 1, 1 << 20).await;
    let (status, body) = get(at, "/ready").await;
    assert!(status == 200 && body.contains("recorded"), "{body}");
    assert_eq!(owner.inventory.lock().len(), 0, "nothing of the probe is left");
    stop(master).await;

    // An owner that lives and does not follow: puts would be lost with the master.
    let master = start(settings(), listen()).await;
    let at = master.addresses().metrics;
    let mut owner = Client::join(&master, 1).await;
    owner.mount(1 << 20).await.unwrap();
    owner.live();
    let (status, body) = get(at, "/ready").await;
    assert!(status == 503 && body.contains("following"), "{body}");
    stop(master).await;

    let slow = Settings { recovery: SOON * 60, ..settings() };
    let master = start(slow, listen()).await;
    let at = master.addresses().metrics;
    assert_eq!(get(at, "/ready").await.0, 503);
    assert_eq!(get(at, "/get_all_segments").await.0, 503);
    assert_eq!(get(at, "/health").await.0, 200);
    stop(master).await;
}

#[tokio::test]
async fn figures_exist_from_the_start_and_count() {
    let master = start(settings(), listen()).await;
    let at = master.addresses().metrics;
    let (_, text) = get(at, "/metrics").await;
    for name in [
        "master_allocated_bytes 0",
        "master_total_capacity_bytes 0",
        "master_key_count 0",
        "master_soft_pin_key_count 0",
        "master_active_clients 0",
        "master_put_start_requests_total 0",
        "master_put_start_failures_total 0",
        "master_batch_exist_key_requests_total 0",
        "master_attempted_evictions_total 0",
        "master_successful_evictions_total 0",
        "master_evicted_key_count 0",
        "master_evicted_size_bytes 0",
        "mem_cache_hit_nums_ 0",
        "total_get_nums_ 0",
    ] {
        assert!(text.lines().any(|line| line == name), "{name} in {text}");
    }
    let mut owner = Client::lend(&master, 1, 1 << 20).await;
    owner.put_whole(&["a", "b"], 64).await;
    owner.locate(&["a", "c"]).await;
    owner.exists(&["a", "b", "c"]).await;
    let (_, text) = get(at, "/metrics").await;
    for name in [
        "master_key_count 2",
        "master_allocated_bytes 128",
        "master_put_end_requests_total 2",
        "master_batch_put_end_requests_total 1",
        "master_get_replica_list_failures_total 1",
        "valid_get_nums_ 1",
        "master_exist_key_requests_total 3",
        "segment_allocated_bytes{segment=\"segment-1\"} 128",
        "segment_total_capacity_bytes{segment=\"segment-1\"} 1048576",
    ] {
        assert!(text.lines().any(|line| line == name), "{name} in {text}");
    }
    let (_, summary) = get(at, "/metrics/summary").await;
    assert!(summary.contains("state=serving, keys=2"), "{summary}");
    assert_eq!(get(at, "/role").await.1, "leader");
    stop(master).await;
}

#[tokio::test]
async fn metadata_is_put_got_and_deleted() {
    let master = start(settings(), listen()).await;
    let at = master.addresses().metadata.unwrap();
    let path = "/metadata?key=mooncake%2Fram%2Fhost%3A1";
    assert_eq!(get(at, path).await.0, 404);
    assert_eq!(send(at, "PUT", path, "{\"a\": 1}").await.0, 200);
    assert_eq!(get(at, path).await, (200, "{\"a\": 1}".to_owned()));
    assert_eq!(get(at, "/metadata?key=mooncake/ram/host:1").await.0, 200);
    assert_eq!(send(at, "DELETE", path, "").await.0, 200);
    assert_eq!(send(at, "DELETE", path, "").await.0, 404);
    assert_eq!(get(at, "/metadata").await.0, 400);
    let large = "x".repeat((1 << 20) + 1);
    assert_eq!(send(at, "PUT", path, &large).await.0, 413);
    assert_eq!(send(at, "POST", path, "").await.0, 405);
    stop(master).await;
}
