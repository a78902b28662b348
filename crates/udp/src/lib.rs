//! UDP in batches: segments out with `UDP_SEGMENT`, coalesced in with `UDP_GRO`, many messages a call.
