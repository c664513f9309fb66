//! Claims and bounded queues.
