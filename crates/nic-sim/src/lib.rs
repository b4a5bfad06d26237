//! An offload NIC in software: rings, DMA, contexts, inline crypto engines, its driver, and the wire.
