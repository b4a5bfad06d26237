//! Trace events report offload changes and contain no key and no data.

use crate::rig::{MockTransport, MockWire};
use ktls_offload::{FixedKeys, KtlsStream, Offload, TlsKey, TlsSuite, TlsVersion, TrafficKeys};
use offload_api::{ContextRefusal, EventLog};

const DATA: &str = "plaintext";

/// Creates a pair of streams with devices. The key bytes are easy to find in text.
fn streams(wire: &MockWire) -> (KtlsStream<MockTransport>, KtlsStream<MockTransport>) {
    let key = |byte| TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[byte; 16], [byte ^ 0xff; 12]).unwrap();
    let keys = TrafficKeys { transmit: (0, key(0xa5)), receive: (0, key(0xc3)) };
    let (near, far) = wire.ends();
    let stream = |end, keys| KtlsStream::new(end, keys, Box::new(FixedKeys)).unwrap();
    (stream(near, keys.clone()), stream(far, keys.swapped()))
}

async fn exchange(near: &mut KtlsStream<MockTransport>, far: &mut KtlsStream<MockTransport>) {
    near.send_chunk(DATA.into()).await.unwrap();
    assert_eq!(far.next_chunk().await.unwrap().unwrap(), DATA);
}

#[test]
fn events_tell_of_the_offload_and_of_no_key() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ((), lines) = EventLog::collect(|| {
        runtime.block_on(async {
            let wire = MockWire::new(7).with_devices(0.0, 7);
            let (mut near, mut far) = streams(&wire);
            near.offload(Offload::BOTH).tx.handle().unwrap();
            far.offload(Offload::BOTH);
            exchange(&mut near, &mut far).await;
            far.ready().await.unwrap().handle().unwrap();
            for half in wire.lock().iter_mut() {
                // A reset followed by a refusal covers two more events.
                half.device.as_mut().unwrap().reset();
                half.device.as_mut().unwrap().refuse = Some(ContextRefusal::Unsupported);
            }
            exchange(&mut near, &mut far).await;
            // Fixed keys have no successor, which fails the stream.
            near.update_keys(false).unwrap_err();
            far.next_chunk().await.unwrap_err();
        });
    });
    let told = [
        "transmit direction offloaded",
        "receive direction offloaded",
        "device was reset",
        "receive offload refused",
        "TLS failed",
    ];
    for event in told {
        assert!(lines.iter().any(|line| line.contains(event)), "{event:?} is missing: {lines:#?}");
    }
    // The key and nonce bytes in hexadecimal and decimal, and the data.
    for secret in ["a5a5", "165, 165", "5a5a", "90, 90", "c3c3", "195, 195", "3c3c", "60, 60", DATA] {
        assert!(!lines.iter().any(|line| line.to_lowercase().contains(secret)), "{secret:?}: {lines:#?}");
    }
}
