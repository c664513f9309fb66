//! Packet parsing, virtio-net header, checksums, segmentation.

#![forbid(unsafe_code)]
