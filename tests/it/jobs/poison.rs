//! Messages in the stream that nobody can read.

use async_nats::jetstream;
use futures_util::StreamExt as _;

use super::{LONG, all_acknowledged, connect, job, result, serve};
use crate::support::cluster::Cluster;
use crate::support::worker::{Behaviour, Dispatch};
use crate::support::{PATIENCE, RawClient, eventually, settle};

#[tokio::test]
async fn header_blocks_that_kill_clients_stop_no_router_and_are_deleted() {
    let cluster = Cluster::with(2, &[]).await;
    let jobs = connect(&cluster.server).await;
    let client = cluster.client.clone();
    let behaviour = Behaviour::script(move |dispatch: Dispatch| {
        let client = client.clone();
        async move { serve(&client, &dispatch).await }
    });
    let worker = cluster.worker("w").behaves(behaviour).start().await;
    // The control: a client of the library dies of the first one, and every subscription with it.
    let victim = cluster.server.client().await;
    let mut control = victim.subscribe("rankpin.job.>").await.expect("subscribes");
    settle(&victim).await;
    let mut raw = RawClient::connect(&cluster.server).await;
    // The first one panics the client library's connection task, the others drop its connection.
    let blocks: [&[u8]; 4] = [
        b"NATS/1.0\r\nName: a\rb\r\n\r\n",
        b"NATS/1.0\r\nName: \xff\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\nBad Name: x\r\n\r\n",
    ];
    for block in blocks {
        raw.publish("rankpin.job.m", None, block, b"{}").await;
    }
    raw.settle().await;
    let end = tokio::time::timeout(PATIENCE, control.next()).await.expect("the subscription ends");
    assert!(end.is_none(), "the client survived what killed it before");
    let stream = jetstream::new(cluster.server.client().await).get_stream("rankpin_jobs").await.expect("it is there");
    assert_eq!(stream.cached_info().state.messages, 4, "the server takes such messages");
    for n in 0..8 {
        jobs.submit(&job(&format!("j{n}"))).await.expect("it is taken");
        assert!(result(&jobs, &format!("j{n}")).await.failure.is_none());
    }
    all_acknowledged(&jobs).await;
    let deleted = async || {
        let mut deleted = 0.0;
        for router in &cluster.routers {
            deleted += router.metric_where("job_deliveries", "unreadable").await;
        }
        (deleted == 4.0).then_some(())
    };
    eventually("all four are deleted", LONG, deleted).await;
    assert_eq!(worker.count(), 8);
    for router in &cluster.routers {
        assert_eq!((router.metric("faults").await, router.metric("nats_clients_rebuilt").await), (0.0, 0.0));
    }
}

#[tokio::test]
async fn a_result_with_such_headers_is_read_and_counts() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let mut raw = RawClient::connect(&cluster.server).await;
    raw.publish("rankpin.result.j", None, b"NATS/1.0\r\nName: a\rb\r\n\r\n", b"mine").await;
    raw.settle().await;
    let found = result(&jobs, "j").await;
    assert_eq!(&found.payload[..], b"mine");
    let worker = cluster.worker("w").start().await;
    jobs.submit(&job("j")).await.expect("it is taken");
    all_acknowledged(&jobs).await;
    assert_eq!(worker.count(), 0, "a job that has a result is not run");
}
