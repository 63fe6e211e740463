// Package lan runs Entente in clusters whose nodes are on one LAN, where they find each
// other by Multicast DNS and, with the secret of a group in common, peer by themselves:
// nobody types a command.
package lan
