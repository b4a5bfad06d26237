//! The host with the real controller, over emulated hosts in virtual time. Data must be correct after any fault of the
//! stream.

use crate::bed;

use bed::{Layers, NvmeNetwork, blocks};
use bytes::{Bytes, BytesMut};
use core::time::Duration;
use nvme_tcp::exercise::Exercise;
use nvme_tcp::host::{Buffer, CommandError, Connector, HostError, HostEvent, ReadError, discover};
use nvme_tcp::namespace::{MemoryStorage, Namespace};
use nvme_tcp::target::TransportConfig;
use nvme_tcp::wire::{ConnectData, InitializeRequest, IoOpcode, Pdu, PduFraming, Sgl, Status, commands, property};
use offload_api::TxTag;
use offload_base::Seed;
use std::sync::Arc;

#[test]
fn discovery_lists_the_subsystem() {
    let mut bed = NvmeNetwork::new(1, TransportConfig::default(), Layers::Tcp, 0.0);
    let (connector, timers, config) = (bed.connector(), bed.timers(), bed.host_config());
    let log = bed.run(async move { discover(&connector, &timers, &config).await });
    let log = log.unwrap();
    assert_eq!(log.entries.len(), 1);
    assert_eq!(log.entries[0].subsystem, bed::DISK);
    assert_eq!(log.entries[0].socket_address(), Some("10.0.0.1:4420".parse().unwrap()));
}

#[test]
fn every_command_has_its_effect() {
    let mut bed = NvmeNetwork::new(2, TransportConfig::default(), Layers::Tcp, 0.0);
    let config = bed.host_config();
    let host = bed.connect(config);
    bed.run(async move {
        host.ready().await.unwrap();
        assert_eq!(host.namespaces().await.unwrap(), [1]);
        assert!(matches!(host.disk(9).await, Err(CommandError::Invalid(_))));
        let disk = host.disk(1).await.unwrap();
        assert_eq!((disk.block_size(), disk.blocks()), (512, 8192));
        let data = blocks(16);
        disk.write(100, [data.slice(..700), data.slice(700..)]).await.unwrap();
        disk.compare(100, [data.clone()]).await.unwrap();
        let Err(CommandError::Status(status)) = disk.compare(101, [data.slice(..512)]).await else { panic!() };
        assert_eq!(status, Status::COMPARE_FAILURE);
        disk.flush().await.unwrap();
        disk.verify(100, 16).await.unwrap();
        disk.write_zeroes(100, 1).await.unwrap();
        // Memory storage returns zeros for deallocated blocks.
        disk.deallocate(&[(101, 1), (103, 2)]).await.unwrap();
        let buffer = Buffer::from_parts([BytesMut::zeroed(1000), BytesMut::zeroed(16 * 512 - 1000)]);
        let read = disk.read(100, buffer).await.unwrap().to_vec();
        let command = commands::range(IoOpcode::Read, 1, 100, 16);
        assert_eq!(host.io_read(command, disk.buffer(16)).await.unwrap().to_vec(), read);
        for (number, (found, wrote)) in read.chunks(512).zip(data.chunks(512)).enumerate() {
            let zero = matches!(number, 0 | 1 | 3 | 4);
            assert_eq!(found, if zero { &[0; 512] } else { wrote }, "block {number}");
        }
        disk.write_uncorrectable(110, 1).await.unwrap();
        let Err(ReadError { error: CommandError::Status(status), buffer }) = disk.read(108, disk.buffer(8)).await
        else {
            panic!("unreadable blocks were read")
        };
        assert_eq!((status, buffer.len()), (Status::UNRECOVERED_READ_ERROR, 8 * 512));
        // Invalid commands are refused before anything is sent.
        assert!(matches!(disk.write(0, [Bytes::from_static(b"short")]).await, Err(CommandError::Invalid(_))));
        assert!(matches!(disk.write_zeroes(0, 0).await, Err(CommandError::Invalid(_))));
        let Err(CommandError::Status(status)) = disk.write_zeroes(8190, 3).await else { panic!() };
        assert_eq!(status, Status::LBA_OUT_OF_RANGE);
        host.close().await;
        assert!(matches!(disk.flush().await, Err(CommandError::Lost(HostError::Closed))));
    });
}

#[test]
fn cancelled_read_returns_its_buffer() {
    let mut bed = NvmeNetwork::new(3, TransportConfig::default(), Layers::Tcp, 0.0);
    let config = bed.host_config();
    let host = bed.connect(config);
    bed.run(async move {
        host.ready().await.unwrap();
        let disk = host.disk(1).await.unwrap();
        let mut reads = Vec::new();
        for _ in 0..40 {
            let read = disk.read(0, disk.buffer(64));
            read.cancel();
            reads.push(read);
            // Dropped reads mix with cancelled ones, so late data of both kinds arrive.
            drop(disk.read(64, disk.buffer(64)));
        }
        for read in reads {
            let Err(ReadError { error: CommandError::Cancelled, buffer }) = read.await else {
                panic!("the read was cancelled")
            };
            assert_eq!(buffer.len(), 64 * 512);
        }
        // Late data of the cancelled reads must not reach other buffers.
        let data = blocks(64);
        disk.write(0, [data.clone()]).await.unwrap();
        assert_eq!(disk.read(0, disk.buffer(64)).await.unwrap().to_vec(), data);
    });
}

#[test]
fn namespace_changes_are_reported() {
    let mut bed = NvmeNetwork::new(7, TransportConfig::default(), Layers::Tcp, 0.0);
    let mut config = bed.host_config();
    // Only a request for events may wait longer than this.
    config.command_timeout = Duration::from_millis(50);
    let host = bed.connect(config);
    let (server, runtime) = (bed.server().clone(), bed.runtime());
    bed.run(async move {
        host.ready().await.unwrap();
        let add = |id| {
            let storage = Arc::new(MemoryStorage::new(1 << 20));
            let namespace = Namespace::new(id, 512, storage).unwrap();
            server.with_target(|target| target.add_namespace(bed::DISK, namespace).unwrap());
        };
        runtime.sleep(Duration::from_secs(2)).await;
        add(7);
        assert_eq!(host.next_event().await.unwrap(), HostEvent::NamespacesChanged(vec![7]));
        assert_eq!(host.namespaces().await.unwrap(), [1, 7]);
        // Two changes at once are one event. A change during the inspection must not be lost.
        add(8);
        add(9);
        let mut told = Vec::new();
        while told != [8, 9] {
            let HostEvent::NamespacesChanged(namespaces) = host.next_event().await.unwrap() else { panic!() };
            told.extend(namespaces);
        }
        let waits = host.clone();
        let (event, ()) = futures_util::future::join(waits.next_event(), host.close()).await;
        assert!(matches!(event, Err(HostError::Closed)));
        assert_eq!(host.stats().connects, 1);
    });
}

#[test]
fn commands_do_not_reach_a_replaced_namespace() {
    let mut bed = NvmeNetwork::new(10, TransportConfig::default(), Layers::Tcp, 0.0);
    let mut config = bed.host_config();
    config.queues = 2;
    let host = bed.connect(config);
    let (server, runtime) = (bed.server().clone(), bed.runtime());
    bed.run(async move {
        host.ready().await.unwrap();
        let disk = host.disk(1).await.unwrap();
        let data = blocks(4);
        disk.write(0, [data.clone()]).await.unwrap();
        server.with_target(|target| {
            target.remove_namespace(bed::DISK, 1).unwrap();
            let storage = Arc::new(MemoryStorage::new(8192 * 512));
            target.add_namespace(bed::DISK, Namespace::new(1, 512, storage).unwrap().with_uuid([9; 16])).unwrap();
        });
        // Time for the event to reach the host.
        runtime.sleep(Duration::from_millis(10)).await;
        for _ in 0..2 {
            let written = disk.write(0, [data.clone()]).await;
            assert!(matches!(written, Err(CommandError::NamespaceChanged { namespace: 1 })), "{written:?}");
        }
        let replaced = host.disk(1).await.unwrap();
        assert_eq!(replaced.read(0, replaced.buffer(4)).await.unwrap().to_vec(), vec![0; 4 * 512]);
        replaced.write(0, [data.clone()]).await.unwrap();
        assert_eq!(host.stats().connects, 1);
    });
}

#[test]
fn unknown_subsystem_is_refused_at_once() {
    let mut bed = NvmeNetwork::new(4, TransportConfig::default(), Layers::Tcp, 0.0);
    let mut config = bed.host_config();
    config.subsystem = "nqn.2026-01.test:none".into();
    let host = bed.connect(config);
    let refused = bed.run(async move { host.ready().await });
    let Err(HostError::NoSubsystem { subsystem, status }) = refused else { panic!("{refused:?}") };
    assert_eq!((subsystem.as_str(), status), ("nqn.2026-01.test:none", Status::CONNECT_INVALID_PARAMETERS));
}

#[test]
fn lost_connections_are_reopened_and_commands_resent() {
    for layers in [Layers::Tcp, Layers::Tls] {
        let mut bed = NvmeNetwork::new(5, TransportConfig::default(), layers, 0.0);
        let mut config = bed.host_config();
        (config.queues, config.data_digest) = (2, true);
        config.reconnect_delay = Duration::from_millis(20);
        let host = bed.connect(config);
        let cutter = bed.cutter([3, 40, 41, 90, 200, 330]);
        let stats = bed.run(async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            // The exercise fails if a resubmitted command was executed out of order.
            let exercise = Exercise { bytes: 24 << 20, blocks: 8192, ..Exercise::new(Seed(5)) };
            exercise.run(&disk, |_| ()).await.unwrap();
            cutter.await;
            disk.flush().await.unwrap();
            host.stats()
        });
        assert!(stats.connects >= 3 && stats.replays > 0, "{stats:?}");
    }
}

#[test]
fn commands_fail_when_the_target_stays_away() {
    let mut bed = NvmeNetwork::new(6, TransportConfig::default(), Layers::Tcp, 0.0);
    let mut config = bed.host_config();
    config.give_up_after = Duration::from_secs(20);
    let host = bed.connect(config);
    let away = bed.go_away_after(Duration::from_millis(100));
    let failed = bed.run(async move {
        host.ready().await.unwrap();
        let disk = host.disk(1).await.unwrap();
        away.await;
        disk.read(0, disk.buffer(4)).await
    });
    let Err(ReadError { error: CommandError::Lost(_), buffer }) = failed else { panic!("{failed:?}") };
    assert_eq!(buffer.len(), 4 * 512);
}

/// A host that requests reads, takes no answers, and sends nothing more.
#[test]
fn host_that_takes_no_answers_is_reset() {
    let mut bed = NvmeNetwork::new(8, TransportConfig::default(), Layers::Tcp, 0.0);
    let (connector, server, runtime) = (bed.connector(), bed.server().clone(), bed.runtime());
    let lost = bed.run(async move {
        let mut stream = connector.connect().await.unwrap();
        let connect = commands::connect(0, 31, Duration::from_secs(1)).with_sgl(Sgl::in_capsule(1024));
        let data = ConnectData { host_id: [7; 16], controller: 0xffff, subsystem: bed::DISK.into(), host: HOST.into() };
        let enable = commands::property_set(property::CC, 0x0046_0001).with_identifier(1);
        let log = commands::log_page(0x02, 0, 1 << 20).with_identifier(2).with_sgl(Sgl::transport(1 << 20));
        let mut pdus = vec![
            (Pdu::InitializeRequest(InitializeRequest::default()), Bytes::new()),
            (Pdu::Command(connect), data.to_bytes().into()),
            (Pdu::Command(enable), Bytes::new()),
        ];
        // 40 MiB of answers exceed all buffers on the way, so the controller cannot send everything.
        pdus.extend((0..40).map(|_| (Pdu::Command(log), Bytes::new())));
        for (pdu, data) in pdus {
            for piece in PduFraming::default().frame(&pdu, [data]).into_pieces() {
                stream.send(piece, TxTag::PLAIN);
            }
        }
        stream.flush();
        runtime.sleep(Duration::from_millis(500)).await;
        assert_eq!(server.with_target(|target| target.controllers()), 1);
        runtime.sleep(Duration::from_secs(20)).await;
        assert_eq!(server.with_target(|target| target.controllers()), 0);
        // The stream ends with a reset, not with the remaining answers.
        loop {
            match core::future::poll_fn(|cx| stream.poll_segment(cx)).await {
                Ok(Some(segment)) => stream.consume(segment.data.len()),
                end => return end,
            }
        }
    });
    assert_eq!(lost.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn host_reports_the_agreed_digests() {
    for (agrees, asks) in [(true, true), (false, true), (true, false)] {
        let mut bed = NvmeNetwork::new(
            9,
            TransportConfig { data_digest: agrees, ..TransportConfig::default() },
            Layers::Tcp,
            0.0,
        );
        let mut config = bed.host_config();
        (config.header_digest, config.data_digest) = (true, asks);
        let host = bed.connect(config);
        let digests = bed.run(async move {
            host.ready().await.unwrap();
            host.digests()
        });
        assert_eq!(digests, Some((true, agrees && asks)));
    }
}

#[test]
fn idle_host_is_kept_alive() {
    let mut bed = NvmeNetwork::new(7, TransportConfig::default(), Layers::Tcp, 0.0);
    let mut config = bed.host_config();
    config.keep_alive = Duration::from_secs(2);
    let host = bed.connect(config);
    let runtime = bed.runtime();
    let stats = bed.run(async move {
        host.ready().await.unwrap();
        // Much longer than the keep-alive time.
        runtime.sleep(Duration::from_secs(60)).await;
        host.disk(1).await.unwrap();
        host.stats()
    });
    assert_eq!(stats.connects, 1, "a minute without commands costs no connection");
}

const HOST: &str = "nqn.2026-01.test:host";
