// Package lan runs Entente in clusters whose nodes are on one LAN, where they find each other by
// Multicast DNS and, with a shared group secret, peer by themselves, without a command.
package lan
