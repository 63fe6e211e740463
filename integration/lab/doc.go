// Package lab runs real Kubernetes clusters on one Linux machine, each node in
// namespaces of its own, with an "internet" between the clusters that can be
// cut, shaped and captured.
//
// A lab has a name; everything that belongs to it carries that name, so that
// two labs on one machine do not meet and so that Down finds all of it, also
// after a crash. Its owner is one process, the daemon, which lives in the
// network namespace that is the internet:
//
//	host namespace     127.0.0.1:port ──┐ (sockets only, no interface)
//	                                    │
//	daemon's namespace   forwarder ─────┤      = the internet
//	                     lan1 bridge 172.30.1.1 ── router ── lan2 bridge 172.30.2.1
//	                       │        │                            │
//	node namespaces     lab-1-1  lab-1-2                      lab-2-1
//	                    eth0 .11  eth0 .12                     eth0 .11
//
// A node is a process too: PID 1 of its own PID, mount, network, UTS and IPC
// namespaces and a child of the daemon that the kernel kills with it. When the
// daemon dies, however it dies, nodes, pods, mounts and interfaces go with it;
// cgroups, files and saved kernel settings remain for Down to remove.
//
// With a shared LAN (Options.LAN) there are no bridges of clusters: lan1 has the nodes
// of all of them, 172.30.C.11 being the first of cluster C, and floods multicast as a
// plain switch does. Hosts (Lab.Host) are further machines on it, for programs of this
// machine. lan2, 172.29.0.0/16, is behind the router: Lab.Readdress carries a node there.
//
// The nodes of a cluster can also be on two such networks in turn (Options.Subnets), lan1
// and lan1b, 172.30.129.0/24, with the router between them. It then has a table of routes
// for each cluster, as the network of a cloud has, by which it forwards packets between
// pods: other clusters may have the same prefixes. Options.Families gives all of this
// IPv6 addresses as well, or alone: lan1 is then fd6c:6162:1:1::/64. Options.CNI, IPAM,
// NoNodeCIDRs and Proxy change the nodes' own network.
//
// The light variant has no nodes: etcd and the control plane run as plain
// processes on loopback ports, without root, for controller tests.
package lab
