package main

import "strings"

// Names of the API are COLLECTION/NAME. People say NAME, and may say both.

func peerName(s string) string     { return inCollection("peers/", s) }
func contractName(s string) string { return inCollection("contracts/", s) }
func peeringName(s string) string  { return inCollection("peerings/", s) }
func tokenName(s string) string    { return inCollection("tokens/", s) }

func inCollection(prefix, s string) string {
	return prefix + strings.TrimPrefix(s, prefix)
}
