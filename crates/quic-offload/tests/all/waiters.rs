//! Waiting tasks: an event wakes them all, and a dropped future leaves no entry behind.

use crate::rig::{QuicTestbed, connect, nic};
use bytes::Bytes;
use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use offload_wire::LinkConfig;
use quic_offload::Closed;
use std::sync::{Arc, Weak};

/// A task that never runs. The library keeps it alive as long as the library keeps the task's waker.
struct CountedTask;

impl std::task::Wake for CountedTask {
    fn wake(self: Arc<Self>) {}
}

/// Polls and drops `count` futures, each in its own task. Returns the number of tasks that are still alive.
fn tasks_kept<'a, T>(count: usize, mut future: impl FnMut() -> Pin<Box<dyn Future<Output = T> + 'a>>) -> usize {
    let tasks: Vec<Weak<CountedTask>> = (0..count)
        .map(|_| {
            let task = Arc::new(CountedTask);
            let known = Arc::downgrade(&task);
            let waker = Waker::from(task);
            assert!(future().as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            known
        })
        .collect();
    tasks.iter().filter(|task| task.strong_count() > 0).count()
}

#[test]
fn dropped_futures_leave_no_tasks() {
    let mut world = QuicTestbed::new(1, [nic(), nic()], LinkConfig::default());
    let config = |name| world.config(name).with(|c| (c.streams, c.paths) = (1, 3));
    let (near, far) = (config("near"), config("far"));
    let (client, _near_driver) = world.client(near);
    let (server, _far_driver) = world.server(far);
    let (tls, to, six) = (world.client_tls(), world.to(false), world.to(true));
    let (from, host) = (world.near.ipv6_address().into(), world.near.clone());
    let accepting = server.clone();
    let _server_task = world.far.spawn("server", async move {
        let connection = accepting.accept().await;
        core::future::pending::<()>().await;
        drop(connection);
    });
    let kept = world.bed.run_within(Duration::from_secs(20), async move {
        let connection = connect(&client, &tls, to).await.unwrap();
        // The peer allows no further streams.
        let (mut one_way, _both) = (connection.open_uni().await.unwrap(), connection.open_bi().await.unwrap());
        one_way.send(Bytes::from_static(b"x")).await.unwrap();
        one_way.finish().unwrap();
        host.runtime().sleep(Duration::from_millis(10)).await;
        // More datagrams than the send buffer holds.
        let mut full = false;
        while !full {
            let sent = connection.send_datagram(Bytes::from(vec![0; 1000]));
            full = pin!(sent).poll(&mut Context::from_waker(Waker::noop())).is_pending();
        }
        [
            ("closed", tasks_kept(1000, || Box::pin(connection.closed()))),
            ("accept_uni", tasks_kept(1000, || Box::pin(connection.accept_uni()))),
            ("accept_bi", tasks_kept(1000, || Box::pin(connection.accept_bi()))),
            ("open_uni", tasks_kept(1000, || Box::pin(connection.open_uni()))),
            ("open_bi", tasks_kept(1000, || Box::pin(connection.open_bi()))),
            ("receive_datagram", tasks_kept(1000, || Box::pin(connection.receive_datagram()))),
            ("send_datagram", tasks_kept(1000, || Box::pin(connection.send_datagram(Bytes::from(vec![0; 1000]))))),
            ("open_path", tasks_kept(1, || Box::pin(connection.open_path(six, Some(from))))),
            ("Endpoint::accept", tasks_kept(1000, || Box::pin(server.accept()))),
            ("Endpoint::drained", tasks_kept(1000, || Box::pin(client.drained()))),
            ("Connecting", tasks_kept(1000, || Box::pin(client.connect(&tls, to, "server.nic-offload.test").unwrap()))),
            ("a clone that is polled", {
                tasks_kept(1000, || {
                    let mut clone = connection.clone();
                    Box::pin(core::future::poll_fn(move |cx| clone.poll_accept_bi(cx)))
                })
            }),
        ]
    });
    for (name, kept) in kept {
        assert_eq!(kept, 0, "{name} keeps tasks of futures that were dropped");
    }
}

/// Some tasks of a shared connection give up; each of the other tasks is woken.
#[test]
fn every_waiting_task_is_woken() {
    let mut world = QuicTestbed::new(2, [nic(), nic()], LinkConfig::default());
    let (client, _near_driver) = world.client(world.config("near"));
    let (server, _far_driver) = world.server(world.config("far"));
    let (tls, to) = (world.client_tls(), world.to(false));
    let host = world.far.clone();
    let serving = world.far.spawn("server", async move {
        let connection = server.accept().await.unwrap();
        let tasks: Vec<_> = (0..8)
            .map(|number| {
                let connection = connection.clone();
                host.spawn("reader", async move {
                    if number % 2 == 0 {
                        // An earlier future of this task waited and was dropped.
                        let mut given_up = pin!(connection.accept_uni());
                        core::future::poll_fn(|cx| Poll::Ready(given_up.as_mut().poll(cx).is_pending())).await;
                    }
                    let stream = connection.accept_uni().await;
                    let closed = connection.closed().await;
                    (stream.is_ok(), closed)
                })
            })
            .collect();
        let mut ended = Vec::new();
        for task in tasks {
            ended.push(task.await);
        }
        ended
    });
    let near = world.near.clone();
    let ended = world.bed.run_within(Duration::from_secs(20), async move {
        let connection = connect(&client, &tls, to).await.unwrap();
        for _ in 0..8 {
            near.runtime().sleep(Duration::from_millis(1)).await;
            let mut stream = connection.open_uni().await.unwrap();
            stream.send(Bytes::from_static(b"x")).await.unwrap();
            stream.finish().unwrap();
        }
        // All streams have arrived, and the tasks wait for the end of the connection.
        near.runtime().sleep(Duration::from_millis(10)).await;
        connection.close(5, "");
        serving.await
    });
    let closed = Closed::ByPeer { code: 5, reason: Bytes::new() };
    assert!(ended.len() == 8 && ended.iter().all(|end| *end == (true, closed.clone())), "{ended:?}");
}
