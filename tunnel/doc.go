// Package tunnel is the fabric: the WireGuard device of a node, the routes into
// it, the address translation and the firewall around it, and the probes that
// show whether traffic really passes.
//
// It does not depend on Kubernetes. [plan.Desired] goes in, [Status] comes out;
// [plan.Plan] is a pure function that plans between the two, and [Fabric] reconciles the kernel
// with the plan again and again.
//
// Package plan decides: values in, values out. Package probe finds out which
// ways work and which packets pass them; package firewall writes the nftables table. This package
// has the device, the routes, and the election of carriers.
//
// # Addresses
//
// Two clusters that peer may use the same pod addresses, and usually do. Each
// therefore knows the other's prefixes under aliases of its own choice
// (internal/aliases). Let A know B's prefix as RA and B know A's prefix as RB. A
// packet from pod p of A to pod q of B then travels like this, and each cluster
// rewrites only its own addresses:
//
//	where                source      destination
//	leaves pod p         p           q in RA
//	inside the tunnel    p in RB     q in RA      source by A, leaving
//	reaches pod q        p in RB     q            destination by B, entering
//
// The source that a packet carries inside the tunnel is what the receiver calls
// the sender, so the AllowedIPs of WireGuard are the aliases and a forged
// source is dropped by the cipher. The source also distinguishes peers
// that happen to use the same alias for us.
//
// Translation keeps the host part and no state. It sits outside connection
// tracking: entering packets are translated before it (priority raw), leaving
// ones after all source NAT. Connection tracking, kube-proxy, the CNI and
// NetworkPolicies thus see the real address of the local pod and the alias of
// the remote one, on all nodes, in both directions. ICMP errors quote a packet
// of the opposite direction; the quoted address is translated with the packet.
//
// # Nodes and gateways
//
// Every node has one device. Some home nodes are gateways: they have tunnels to the gateways of
// all peers. For each peer one of them is the carrier, which translates (docs/design/0023). The
// other nodes send packets for the peer to the carrier over the same device, and get the answers
// back that way, so the CNI needs no configuration. The node of the pod decides about
// exposure, because it sees both directions. Nodes with much traffic between them send it past
// the carriers, and both translate then (docs/design/0025).
//
// # What passes
//
// Probes inside the tunnels, from node to node, decide which gateway carries which peer. Each node
// also sends probes from its own address among its pods' to those of the peers' nodes, which take the
// way of pods' packets: these are only reported ([probe.Ends], docs/design/0045).
//
// # Sizes
//
// The device has the largest MTU that any network around the node allows. Padded probes find the path
// MTU to each other node ([probe.Search], RFC 8899), which becomes the MTU of the routes that
// lead there: the kernel rejects or fragments larger packets, and limits the
// segments of TCP. A carrier does so for the nodes behind it. Where the path MTU is below what IPv6
// needs, IPv4 goes on in smaller packets, and the status reports that IPv6 is lost.
//
// # Exposure
//
// A packet that enters from the tunnel is dropped unless it answers a flow that the
// local side opened, or source, destination, protocol and port are listed in
// [plan.Peer.Inbound]: the source in the same [plan.Exposure] as the rest. That is
// decided for each packet, so closing a port also ends flows that are open.
// Packets pass from one peer to another only between addresses in [plan.Layout.Transit]. A packet to
// an alias leaves through
// the device or not at all: an unreachable route and a firewall rule stay
// behind when the device is gone. Without the nftables table, which decides all this, the device accepts
// no packets of other clusters.
//
// # What the fabric owns
//
// The device (default "entente0"), the nftables table "entente", routes and
// rules with protocol number 141. [Clean] removes all of that by these marks.
package tunnel
