//! The routers of a namespace, found by the NATS service protocol.
