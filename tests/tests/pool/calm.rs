//! Nothing goes wrong.

use kvferry_store::Matching;
use kvferry_tests::pool::key;
use kvferry_tests::pool::load::Load;
use kvferry_tests::pool::program::Master;

use super::replicas;

#[tokio::test(flavor = "multi_thread")]
async fn what_processes_put_others_get_whole_and_nothing_fails() {
    let master = Master::start(&[]);
    let _lenders = ["a", "b"].map(|name| master.lender(name, "64MiB", &[]));
    let load = Load::start(&master, &["a", "b", "c"], 40, replicas(2)).await;
    load.until_got(1000).await;
    let tally = load.end().await;
    assert_eq!(tally.failed(), 0, "{tally:?}");
    let client = master.client("c", 4096).await;
    let answer = client.store.remove_matching(Matching::All, true).await.unwrap();
    assert!(answer.removed > 0 && answer.is_recorded);
    for number in 0..40 {
        assert!(!client.store.exists(key(number)).await.unwrap());
    }
}
