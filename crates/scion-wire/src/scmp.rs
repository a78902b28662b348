//! SCMP: what routers and hosts say about packets, echo and traceroute.
