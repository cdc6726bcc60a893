"""Requirements: what upstreams declare, resolved into hashed locks, and checked."""
