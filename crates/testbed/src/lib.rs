//! Hosts, NICs and wires put together, in virtual time or in real time.
