// Package firewall makes the nftables table "entente" of a node from its layout: which peer may open
// which flow, and the translation of addresses. The rules are built as a value; [Table] compares
// it with the table in the kernel, and writes what differs.
package firewall
