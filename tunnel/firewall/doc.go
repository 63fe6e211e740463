// Package firewall makes the nftables table "entente" of a node from its layout: who may open
// which flow, and the translation of addresses. The rules are built as a value; [Table] compares
// it with what the kernel has, and writes what differs.
package firewall
