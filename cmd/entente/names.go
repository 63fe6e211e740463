package main

import "strings"

// Names of the API are COLLECTION/NAME. People say NAME, and may say both.

func peerName(s string) string     { return inCollection("peers/", s) }
func contractName(s string) string { return inCollection("contracts/", s) }
func peeringName(s string) string  { return inCollection("peerings/", s) }
func tokenName(s string) string    { return inCollection("tokens/", s) }

// inCollection names nothing by no name.
func inCollection(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + strings.TrimPrefix(s, prefix)
}
