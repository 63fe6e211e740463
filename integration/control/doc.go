// Package control tests the agents of two clusters on real control planes: etcd,
// API server, controller manager and scheduler, with nodes that only pretend to
// run pods. The agents are the real program, as processes with the rights that
// the chart gives them, so that they can be killed at any moment.
//
// What takes kubelets, a network or traffic is tested elsewhere, end to end.
//
// Variables: ENTENTE_CONTROL_ROUNDS is how many times each side is killed
// (default 8), ENTENTE_CONTROL_CYCLES how often two clusters peer and unpeer
// (default 4), ENTENTE_CONTROL_SEED repeats a run of kills, and
// ENTENTE_CONTROL_LOGS keeps the agents' logs in that folder. ENTENTE_ROUNDS is how
// often agents are killed in each part of a peering (default 2), ENTENTE_SEED
// repeats that, and ENTENTE_SOAK=1 rotates certificates for five minutes.
package control
